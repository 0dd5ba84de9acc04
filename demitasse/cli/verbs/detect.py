"""detect: the scores that a trained net gives to windows of images.

Source: Caffe, ``python/detect.py``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse.cli.images import ImageModel, image_options, reading
from demitasse.cli.options import FILE
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    from demitasse.compat.pycaffe.detector import Detection

EDGES = ("ymin", "xmin", "ymax", "xmax")


@click.command(cls=Verb)
@click.argument("source", metavar="INPUT", type=FILE)
@click.argument("out", metavar="OUTPUT", type=FILE)
@image_options
@click.option(
    "--crop_mode",
    type=click.Choice(["list", "selective_search"]),
    default="selective_search",
    show_default=True,
    help="Where windows come from: INPUT, or the package selective_search_ijcv_with_python.",
)
@click.option(
    "--context_pad",
    type=click.IntRange(min=0),
    default=16,
    show_default=True,
    help="Width of the border that shows what is around a window, in pixels of the net's input.",
)
def command(
    source: Path,
    out: Path,
    image_model: ImageModel,
    device: str | None,
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
        message = f"OUTPUT is a .csv or a .h5 file, not {out.name!r}"
        raise click.UsageError(message)
    if (source.suffix == ".csv") != (crop_mode == "list"):
        message = "--crop_mode list needs a .csv file of windows, selective_search a .txt file"
        raise click.UsageError(message)
    with reading(), use_device(choose_device(device)[0]):
        mean = image_model.mean()
        detector = Detector(
            image_model.net,
            image_model.weights,
            # one value for each channel, which also stands for what is beyond an image
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
    click.echo(f"Wrote scores of {len(found)} windows to {out}")


def _windows(source: Path) -> list[tuple[str, list[list[int]]]]:
    """Read images and their windows: ymin, xmin, ymax, xmax."""
    from demitasse.core.paths import regular_file
    from demitasse.errors import DataError, ErrorCode

    windows: dict[str, list[list[int]]] = {}
    with regular_file(source).open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = csv.DictReader(file, skipinitialspace=True)
        try:
            for row in rows:
                edges = [int(float(row[edge])) for edge in EDGES]
                windows.setdefault(row["filename"], []).append(edges)
        except (KeyError, OverflowError, TypeError, ValueError, csv.Error):
            message = "each row needs filename, xmin, ymin, xmax, ymax; the first row names them"
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

    from demitasse.cli.frames import Block, write_frame
    from demitasse.errors import DataError, ErrorCode

    if not found:
        message = "there are no windows, and such a table has at least one row; name a .csv file"
        raise DataError(message, str(out), code=ErrorCode.MISSING)
    names = np.array([[one["filename"]] for one in found])
    windows = np.array([one["window"] for one in found])
    scores = np.array([one["prediction"].ravel() for one in found])
    blocks = [Block(EDGES, windows), Block(_class_names(found), scores)]
    write_frame(out, "df", Block(["filename"], names), blocks)
