"""classify and detect: scores of images and of windows, as Caffe's Python scripts write them.

Source: Caffe, ``python/classify.py``.
Source: Caffe, ``python/detect.py``.
Source: pandas, ``pandas/io/pytables.py`` (the format "fixed"); PyTables, "File format".
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from demitasse.cli.command import Command
from demitasse.cli.errors import echo, error_text
from demitasse.cli.options import FILE, FLOAT, device_option, option_group
from demitasse.core.atomic import atomic_write
from demitasse.errors import ConfigError, ErrorCode

if TYPE_CHECKING:
    import numpy as np

    from demitasse.compat.pycaffe.detector import Detection

Function = Callable[..., Any]


@dataclass(frozen=True)
class ImageModel:
    """A net and its preprocessing of images.

    Attributes:
        net: Prototxt of the net.
        weights: Weights of the net.
        mean_file: Mean to subtract, ``.npy`` or ``.binaryproto``; None for no mean.
        input_scale: Factor after the mean.
        raw_scale: Factor before the mean.
        channel_swap: Order of channels; None for the order in files.
        device: Name of the device; None for that of the settings.
    """

    net: str
    weights: str
    mean_file: Path | None
    input_scale: float | None
    raw_scale: float
    channel_swap: list[int] | None
    device: str | None

    def mean(self) -> np.ndarray | None:
        """Read the mean. Shape: (C, H, W) or (C,)."""
        from demitasse.io.data.transform.mean import read_mean
        from demitasse.io.weights.npz import read_npy

        if self.mean_file is None:
            return None
        if self.mean_file.suffix == ".npy":
            return read_npy(self.mean_file)
        return read_mean(self.mean_file)


def _image_model(
    *, device: str | None, gpu: bool, mean_file: Path | None, channel_swap: str, **values: Any
) -> ImageModel:
    if gpu and device is not None:
        message = "got --device and --gpu, expected one of them"
        raise click.UsageError(message)
    return ImageModel(
        **values,
        device="cuda:0" if gpu else device,
        mean_file=None if mean_file == Path() else mean_file,  # an empty name is Caffe's default
        channel_swap=numbers("--channel_swap", channel_swap) if channel_swap else None,
    )


image_options = option_group(
    "image_model",
    _image_model,
    click.option("--model_def", "net", metavar="FILE", required=True, help="The net's prototxt."),
    click.option(
        "--pretrained_model", "weights", metavar="FILE", required=True, help="Weights of the net."
    ),
    device_option(),
    click.option("--gpu", is_flag=True, help="Run on the first GPU, as in Caffe."),
    click.option(
        "--mean_file",
        type=FILE,
        help="Subtract this mean, a .npy file (channels, height, width) or a .binaryproto. "
        "[default: no mean]",
    ),
    click.option("--input_scale", type=FLOAT, help="Multiply by this after the mean. [default: 1]"),
    click.option(
        "--raw_scale",
        type=FLOAT,
        default=255.0,
        show_default=True,
        help="Multiply pixels from 0 to 1 by this before the mean.",
    ),
    click.option(
        "--channel_swap",
        default="2,1,0",
        show_default=True,
        help="Order of the channels; 2,1,0 is blue first, an empty text red first.",
    ),
)
"""Adds the flags of a net for images; the command gets ``image_model``."""


@contextmanager
def input_errors() -> Iterator[None]:
    """Turn errors of files and values into DataError and ConfigError: they are wrong input."""
    from demitasse.core.paths import code_of
    from demitasse.errors import ConfigError, DataError

    try:
        yield
    except OSError as error:
        raise DataError(error_text(error), code=code_of(error)) from error
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error), code=ErrorCode.INVALID) from error


def numbers(flag: str, text: str) -> list[int]:
    """Return the integers in a comma-separated flag."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        message = f"{flag} takes integers with commas between; got {text!r}"
        raise click.UsageError(message) from None


@click.command(cls=Command)
@click.argument("source", metavar="INPUT", type=FILE)
@click.argument("out", metavar="OUTPUT", type=FILE)
@image_options
@click.option(
    "--center_only", is_flag=True, help="Use only the centre crop, not ten crops of an image."
)
@click.option(
    "--images_dim",
    metavar="HEIGHT,WIDTH",
    default="256,256",
    show_default=True,
    help="Resize images to this before they are cropped.",
)
@click.option(
    "--ext", default="jpg", show_default=True, help="Extension of the images in a folder."
)
def classify_command(
    source: Path,
    out: Path,
    image_model: ImageModel,
    center_only: bool,
    images_dim: str,
    ext: str,
) -> None:
    """Write a trained net's scores of images to a .npy file.

    INPUT is an image, a folder of images, or a .npy file of images (N, H, W, C), red first,
    from 0 to 1. OUTPUT has one row for each image.
    """
    import numpy as np

    from demitasse.compat.pycaffe.classifier import Classifier
    from demitasse.core.atomic import atomic_write
    from demitasse.core.device import choose_device, use_device

    size = numbers("--images_dim", images_dim)
    if len(size) != 2:
        message = f"--images_dim takes height,width; got {images_dim!r}"
        raise click.UsageError(message)
    with input_errors(), use_device(choose_device(image_model.device)[0]):
        classifier = Classifier(
            image_model.net,
            image_model.weights,
            image_dims=size,
            mean=image_model.mean(),
            input_scale=image_model.input_scale,
            raw_scale=image_model.raw_scale,
            channel_swap=image_model.channel_swap,
        )
        scores = classifier.predict(_load_images(source, ext), oversample=not center_only)
    with atomic_write(out) as file:
        np.save(file, scores)
    echo(f"Wrote scores of {len(scores)} images to {out}")


def _load_images(source: Path, ext: str) -> list[np.ndarray]:
    from demitasse.compat.pycaffe.io import load_image
    from demitasse.errors import DataError
    from demitasse.io.weights.npz import read_npy

    if source.suffix == ".npy":
        return list(read_npy(source))
    files = sorted(source.glob(f"*.{ext}")) if source.is_dir() else [source]
    if not files:
        message = f"the folder has no image ending in .{ext}; set the extension by --ext"
        raise DataError(message, str(source), code=ErrorCode.NOT_FOUND, ending=ext)
    return [load_image(file) for file in files]


EDGES = ("ymin", "xmin", "ymax", "xmax")


@click.command(cls=Command)
@click.argument("source", metavar="INPUT", type=FILE)
@click.argument("out", metavar="OUTPUT", type=FILE)
@image_options
@click.option(
    "--crop_mode",
    type=click.Choice(["list", "selective_search"]),
    default="selective_search",
    show_default=True,
    help="Source of windows: INPUT, or the package selective_search_ijcv_with_python.",
)
@click.option(
    "--context_pad",
    type=click.IntRange(min=0),
    default=16,
    show_default=True,
    help="Width of the border around a window, in pixels of the net's input.",
)
def detect_command(
    source: Path,
    out: Path,
    image_model: ImageModel,
    crop_mode: str,
    context_pad: int,
) -> None:
    """Write a trained net's scores of windows to a file.

    INPUT is a .txt file of image files, one in a line, or for --crop_mode list a .csv file with
    the columns filename, xmin, ymin, xmax, ymax. OUTPUT is a .csv file, or an HDF5 file (.h5) with
    the same table, which pandas.read_hdf reads.
    """
    from demitasse.compat.pycaffe.detector import Detector
    from demitasse.core.device import choose_device, use_device
    from demitasse.core.paths import read_text

    if out.suffix not in {".csv", ".h5"}:
        message = f"got {out.name!r}, expected a .csv or a .h5 file as OUTPUT"
        raise click.UsageError(message)
    if (source.suffix == ".csv") != (crop_mode == "list"):
        message = "--crop_mode list needs a .csv file of windows, selective_search a .txt file"
        raise click.UsageError(message)
    with input_errors(), use_device(choose_device(image_model.device)[0]):
        mean = image_model.mean()
        detector = Detector(
            image_model.net,
            image_model.weights,
            # one value for each channel, which also fills the area outside an image
            mean=mean if mean is None else mean.reshape(len(mean), -1).mean(1)[:, None, None],
            input_scale=image_model.input_scale,
            raw_scale=image_model.raw_scale,
            channel_swap=image_model.channel_swap,
            context_pad=context_pad,
        )
        found = (
            detector.detect_windows(_windows(source))
            if crop_mode == "list"
            else detector.detect_selective_search(read_text(source).splitlines())
        )
    if out.suffix == ".csv":
        _write_csv(out, found)
    else:
        _write_hdf5(out, found)
    echo(f"Wrote scores of {len(found)} windows to {out}")


def _windows(source: Path) -> list[tuple[str, list[list[int]]]]:
    """Return the images and their windows: ymin, xmin, ymax, xmax."""
    from demitasse.core.paths import regular_file
    from demitasse.errors import DataError

    windows: dict[str, list[list[int]]] = {}
    with regular_file(source).open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = csv.DictReader(file, skipinitialspace=True)
        try:
            for row in rows:
                edges = [int(float(row[edge])) for edge in EDGES]
                windows.setdefault(row["filename"], []).append(edges)
        except (KeyError, OverflowError, TypeError, ValueError, csv.Error):
            message = "each row needs the columns filename, xmin, ymin, xmax, ymax of the first row"
            raise DataError(message, f"{source}:{rows.line_num}", code=ErrorCode.INVALID) from None
    return list(windows.items())


def _class_names(found: Sequence[Detection]) -> list[str]:
    classes = found[0]["prediction"].size if found else 0
    return [f"class{number}" for number in range(classes)]


def _write_csv(out: Path, found: Sequence[Detection]) -> None:
    from demitasse.core.atomic import atomic_write

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["filename", *EDGES, *_class_names(found)])
    for one in found:
        scores = one["prediction"].ravel().tolist()
        writer.writerow([one["filename"], *one["window"], *scores])
    with atomic_write(out) as file:
        file.write(text.getvalue().encode("utf-8", "surrogateescape"))


def _write_hdf5(out: Path, found: Sequence[Detection]) -> None:
    import numpy as np

    from demitasse.errors import DataError

    if not found:
        message = "got no windows, and an HDF5 table needs at least one row; write a .csv file"
        raise DataError(message, str(out), code=ErrorCode.MISSING)
    names = np.array([[one["filename"]] for one in found])
    windows = np.array([one["window"] for one in found])
    scores = np.array([one["prediction"].ravel() for one in found])
    blocks = [Block(EDGES, windows), Block(_class_names(found), scores)]
    write_frame(out, "df", Block(["filename"], names), blocks)


PANDAS_FORMAT = "0.15.2"
"""Version of the format, as pandas writes since then."""


class Block(NamedTuple):
    """Columns of one type.

    Attributes:
        names: Names of the columns.
        values: Shape: (rows, columns).
    """

    names: Sequence[str]
    values: np.ndarray


def write_frame(path: Path, key: str, index: Block, blocks: Sequence[Block]) -> None:
    """Write a table.

    Args:
        path: The file.
        key: Name of the table in the file.
        index: Name and values of the index: strings. Shape: (rows, 1).
        blocks: The columns, with at least one row.

    Raises:
        ConfigError: h5py is not installed.
        OSError: The file cannot be written.
    """
    try:
        import h5py
    except ImportError:
        from demitasse.core.extras import missing_extra

        raise missing_extra(
            ConfigError, "an HDF5 file", "h5py", "hdf5", instead="write a .csv file"
        ) from None
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        _set_attributes(file, CLASS="GROUP", VERSION="1.0", PYTABLES_FORMAT_VERSION="2.1")
        table = file.create_group(key)
        _set_attributes(table, CLASS="GROUP", VERSION="1.0", encoding="UTF-8", errors="strict")
        _set_attributes(table, pandas_type="frame", pandas_version=PANDAS_FORMAT)
        table.attrs.update(ndim=2, nblocks=len(blocks))
        names = [name for block in blocks for name in block.names]
        _add_axis(table, "axis0", names)
        _add_axis(table, "axis1", index.values.ravel().tolist(), index.names[0])
        for number, block in enumerate(blocks):
            _add_axis(table, f"block{number}_items", block.names)
            _add_array(table, f"block{number}_values", block.values)
    with atomic_write(path) as out:
        out.write(content.getvalue())


def _set_attributes(node: Any, **texts: str) -> None:
    """Set attributes of a node, as strings that every version of PyTables reads."""
    import h5py

    for name, text in texts.items():
        content = text.encode("utf-8", "surrogateescape")
        node.attrs.create(name, content, dtype=h5py.string_dtype("utf-8", len(content)))


def _add_axis(table: Any, name: str, texts: Iterable[str], label: str | None = None) -> None:
    import numpy as np

    _set_attributes(table, **{f"{name}_variety": "regular"})
    _add_array(table, name, np.array([text.encode("utf-8", "surrogateescape") for text in texts]))
    _set_attributes(table[name], kind="string", **({} if label is None else {"name": label}))


def _add_array(table: Any, name: str, values: np.ndarray) -> None:
    import numpy as np

    table[name] = values
    _set_attributes(table[name], CLASS="ARRAY", FLAVOR="numpy", PANDAS_FORMAT="2.4")
    table[name].attrs["transposed"] = np.uint8(1)  # rows first
