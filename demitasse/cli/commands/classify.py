"""classify and detect: scores of images and of windows, as Caffe's Python scripts write them.

Source: Caffe, ``python/classify.py``.
Source: Caffe, ``python/detect.py``.
Source: pandas, ``pandas/io/pytables.py`` (the format "fixed"); PyTables, "File format".
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from demitasse.cli.command import Command
from demitasse.cli.errors import echo, fail, input_errors
from demitasse.cli.options import FILE, FLOAT, device_option, option, option_group, switch
from demitasse.core.atomic import atomic_write, write_bytes
from demitasse.core.extras import needs_extra
from demitasse.errors import ConfigError, DataError, ErrorCode

if TYPE_CHECKING:
    import numpy as np

    from demitasse.compat.pycaffe.detector import Detection


class ImageModel(NamedTuple):
    """A net for images: its mean and device, if given, and arguments of ``Classifier``."""

    mean_file: Path | None
    device: str | None
    arguments: dict[str, Any]

    def mean(self) -> np.ndarray | None:
        """Read the mean. Shape: (C, H, W) or (C,)."""
        from demitasse.inference.cards.preprocessing import read_mean_array

        return None if self.mean_file is None else read_mean_array(self.mean_file)


def _image_model(
    *, device: str | None, gpu: bool, mean_file: Path | None, channel_swap: str, **arguments: Any
) -> ImageModel:
    if gpu and device is not None:
        fail("got --device and --gpu, expected one of them")
    swap = numbers("--channel_swap", channel_swap) if channel_swap else None
    return ImageModel(mean_file, "cuda:0" if gpu else device, {**arguments, "channel_swap": swap})


image_options = option_group(
    "image_model",
    _image_model,
    option("--model_def model_file", "The net's prototxt.", metavar="FILE", required=True),
    option(
        "--pretrained_model pretrained_file", "Weights of the net.", metavar="FILE", required=True
    ),
    device_option(),
    switch("--gpu", "Run on the first GPU, as in Caffe."),
    option(
        "--mean_file",
        "Subtract this mean, a .npy file (channels, height, width) or a .binaryproto. "
        "[default: no mean]",
        FILE,
    ),
    option("--input_scale", "Multiply by this after the mean. [default: 1]", FLOAT),
    option("--raw_scale", "Multiply pixels from 0 to 1 by this before the mean.", FLOAT, 255.0),
    option(
        "--channel_swap", "Order of the channels; 2,1,0 is blue first, an empty text red first.",
        default="2,1,0",
    ),
)  # fmt: skip
"""Adds the flags of a net for images; the command gets ``image_model``."""


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
@switch("--center_only", "Use only the centre crop, not ten crops of an image.")
@option(
    "--images_dim", "Resize images to this before they are cropped.", default="256,256",
    metavar="HEIGHT,WIDTH",
)  # fmt: skip
@option("--ext", "Extension of the images in a folder.", default="jpg")
def classify_command(
    source: Path, out: Path, image_model: ImageModel, center_only: bool, images_dim: str, ext: str
) -> None:
    """Write a trained net's scores of images to a .npy file.

    INPUT is an image, a folder of images, or a .npy file of images (N, H, W, C), red first,
    from 0 to 1. OUTPUT has one row for each image; to another ending than .npy, .npy is added.
    """
    import numpy as np

    from demitasse.compat.pycaffe.classifier import Classifier
    from demitasse.core.device import choose_device, use_device

    size = numbers("--images_dim", images_dim)
    if len(size) != 2:
        fail(f"--images_dim takes height,width; got {images_dim!r}")
    with input_errors(), use_device(choose_device(image_model.device)[0]):
        mean = image_model.mean()
        classifier = Classifier(image_dims=size, mean=mean, **image_model.arguments)
        scores = classifier.predict(_load_images(source, ext), oversample=not center_only)
    out = out if out.name.endswith(".npy") else Path(f"{out}.npy")  # the name that np.save writes
    with atomic_write(out) as file:
        np.save(file, scores)
    echo(f"Wrote scores of {len(scores)} images to {out}")


def _load_images(source: Path, ext: str) -> list[np.ndarray]:
    from demitasse.compat.pycaffe.io import load_image
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
@option(
    "--crop_mode", "Source of windows: INPUT, or the package selective_search_ijcv_with_python.",
    ["list", "selective_search"], "selective_search",
)  # fmt: skip
@option(
    "--context_pad", "Width of the border around a window, in pixels of the net's input.",
    click.IntRange(min=0), 16,
)  # fmt: skip
def detect_command(
    source: Path, out: Path, image_model: ImageModel, crop_mode: str, context_pad: int
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
        fail(f"got {out.name!r}, expected a .csv or a .h5 file as OUTPUT")
    if (source.suffix == ".csv") != (crop_mode == "list"):
        fail("--crop_mode list needs a .csv file of windows, selective_search a .txt file")
    with input_errors(), use_device(choose_device(image_model.device)[0]):
        mean = image_model.mean()
        if mean is not None:  # one value for each channel, which also fills the area outside
            mean = mean.reshape(len(mean), -1).mean(1)[:, None, None]
        detector = Detector(mean=mean, context_pad=context_pad, **image_model.arguments)
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

    windows: dict[str, list[list[int]]] = {}
    table = regular_file(source)
    with table.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
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
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["filename", *EDGES, *_class_names(found)])
    for one in found:
        scores = one["prediction"].ravel().tolist()
        writer.writerow([one["filename"], *one["window"], *scores])
    write_bytes(out, text.getvalue().encode("utf-8", "surrogateescape"))


PANDAS_FORMAT = "0.15.2"
"""Version of the format, as pandas writes since then."""


def _write_hdf5(out: Path, found: Sequence[Detection]) -> None:
    """Write a table of pandas, whose blocks are the windows and the scores."""
    import numpy as np

    if not found:
        message = "got no windows, and an HDF5 table needs at least one row; write a .csv file"
        raise DataError(message, str(out), code=ErrorCode.MISSING)
    with needs_extra(ConfigError, "an HDF5 file", "h5py", "hdf5", instead="write a .csv file"):
        import h5py
    blocks = (
        (EDGES, np.array([one["window"] for one in found])),
        (_class_names(found), np.array([one["prediction"].ravel() for one in found])),
    )
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        _set_attributes(file, CLASS="GROUP", VERSION="1.0", PYTABLES_FORMAT_VERSION="2.1")
        table = file.create_group("df")
        _set_attributes(table, CLASS="GROUP", VERSION="1.0", encoding="UTF-8", errors="strict")
        _set_attributes(table, pandas_type="frame", pandas_version=PANDAS_FORMAT)
        table.attrs.update(ndim=2, nblocks=len(blocks))
        _add_axis(table, "axis0", [name for names, _ in blocks for name in names])
        _add_axis(table, "axis1", [one["filename"] for one in found], "filename")
        for number, (names, values) in enumerate(blocks):
            _add_axis(table, f"block{number}_items", names)
            _add_array(table, f"block{number}_values", values)
    write_bytes(out, content.getvalue())


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
