"""What kernels over pictures have in common: bands of rows, which threads divide and copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.axes import Axes
from demitasse.backends.kernels.borders import bordered
from demitasse.backends.kernels.direct.windows import Windows
from demitasse.backends.kernels.language.kernel import FLOAT, WIDE, Kernel, Value

__all__ = ["BANDS", "Band", "band_values", "bands", "panels"]

BANDS = (
    "x_at", "x_image", "x_plane", "x_row", "planes", "height", "breadth", "top", "left",
    "y_at", "y_image", "y_row", "y_column", "down", "right", "step_down", "step_right",
    "band", "bands", "count", "lanes", "high", "wide", "scratch", "scratch_size", "taps",
    "length", "filters", "filter_lane", "panels", "panel",
)  # fmt: skip
"""Fields of a kernel over pictures: their address, elements from one to the next, from one plane
and from one row; planes, rows, columns; zeros above and left. The outputs' address, elements from
one picture, row, column to the next; rows and columns; rows and columns of the picture from one
window to the next. Rows of a band, bands of a picture, and of all of them, and lanes into which
they are divided; rows and columns that are copied for a band; where the lanes' scratch begins,
bytes of each. The taps' table and length. The address of the filters, or of their gradient, and
elements from one lane's to the next's; how many panels there are, and their table: the address of
the product, elements from where the filters begin, the first vector, and where its three vectors
lie in a pixel."""

COLUMNS = 6


class Band(NamedTuple):
    """Some rows of outputs of one picture, as the kernel finds them.

    Attributes:
        copy: Where the picture's rows are.
        output: Where the first of what comes out is.
        row: Its row among those that come out.
        line: The convolution's row that it begins with.
        rows: How many rows come out.
        filters: Where the lane's filters are.
        again: Whether the lane has had some before, 1 or 0.
    """

    copy: Value
    output: Value
    row: Value
    line: Value
    rows: Value
    filters: Value
    again: Value


@contextmanager
def bands(
    k: Kernel,
    f: SimpleNamespace,
    *,
    ones: bool = False,
    line: Callable[[Value], Value] = lambda row: row,
) -> Iterator[Band]:
    """Write what is done to each band, lane by lane.

    Args:
        k: The kernel.
        f: Its fields.
        ones: Whether a plane of ones follows those of the picture.
        line: Gives the convolution's row that a row that comes out begins with.
    """
    thread, threads = k.thread()
    with k.loop(f.lanes, thread, threads) as lane:
        copy = k.add(f.scratch, k.times(lane.i, f.scratch_size))
        if ones:
            area = k.times(f.high, f.wide)
            plane = k.at(copy, k.times(area, f.planes))
            with k.loop(area) as place:
                k.store(k.real(1.0), k.at(plane, place.i))
        filters = k.at(f.filters, k.times(lane.i, f.filter_lane))
        begin, end = k.part(f.count, lane.i, f.lanes)
        with k.loop(end, begin) as band:
            image = k.divided(band.i, f.bands)
            row = k.times(k.rest(band.i, f.bands), f.band)
            rows = k.least(f.band, k.minus(f.down, row))
            first = line(row)
            _copy(k, f, image, k.minus(k.times(first, f.step_down), f.top), copy)
            output = k.add(k.times(image, f.y_image), k.times(row, f.y_row))
            again = k.least(k.minus(band.i, begin), 1)
            yield Band(copy, k.at(f.y_at, output), row, first, rows, filters, again)


def _copy(k: Kernel, f: SimpleNamespace, image: Value, first: Value, copy: Value) -> None:
    """Write the copy of a picture's rows from ``first`` on, with zeros around it."""
    with k.loop(f.planes) as plane, k.loop(f.high) as line:
        y = k.add(first, line.i)
        there = k.at(copy, k.times(k.add(k.times(plane.i, f.high), line.i), f.wide))
        source = k.add(k.times(image, f.x_image), k.times(plane.i, f.x_plane), k.times(y, f.x_row))
        here = k.at(f.x_at, k.minus(source, f.left))
        zero = (there, k.real(0.0), FLOAT)
        begin, stop = bordered(k, y, (f.height, f.breadth), f.left, f.wide, zero)
        whole = k.minus(stop, k.rest(k.minus(stop, begin), k.width))
        with k.loop(whole, begin, k.width) as column:
            k.store(k.load(k.at(here, column.i)), k.at(there, column.i))
        with k.loop(stop, whole) as column:
            k.store(k.load_number(k.at(here, column.i)), k.at(there, column.i))


@contextmanager
def panels(
    k: Kernel, f: SimpleNamespace, base: Value
) -> Iterator[tuple[Value, Value, Value, Value]]:
    """Write what is done for each panel.

    Yields:
        The product's address, where its filters begin from ``base`` on, its first vector, and the
        address of the table of where the vectors lie in a pixel.
    """
    with k.loop(f.panels) as panel:
        entry = k.add(f.panel, k.times(panel.i, COLUMNS * WIDE))
        multiply, filters, first = (k.load_word(k.add(entry, WIDE * word)) for word in range(3))
        yield multiply, k.at(base, filters), first, k.add(entry, 3 * WIDE)


def band_values(
    windows: Windows,
    axes: Axes,
    products: dict[int, int],
    taps: int,
    places: Sequence[int],
) -> tuple[dict[str, int], np.ndarray]:
    """Return the values of those fields that follow from the sizes, and a table to be kept alive.

    Args:
        windows: The convolution.
        axes: Of what comes out.
        products: The kernels.
        taps: How many of the windows' taps are used.
        places: Elements to each vector of an output from where that begins.
    """
    (_, c, h, w), (n, _, _, right), op = windows.x, windows.y, windows.op
    table = np.zeros((len(windows.panels), COLUMNS), np.int64)
    for row, (vectors, first) in zip(table, windows.panels, strict=True):
        row[:3] = products[vectors], first * windows.width * taps, first
        row[3 : 3 + vectors] = [FLOAT * place for place in places[first : first + vectors]]
    return {
        "x_image": c * h * w, "x_plane": h * w, "x_row": w, "planes": c, "height": h, "breadth": w,
        "top": op.pad[0], "left": op.pad[1],
        "y_image": axes.image, "y_row": axes.row, "y_column": axes.column, "down": windows.rows,
        "right": right, "step_down": op.stride[0], "step_right": op.stride[1],
        "band": windows.band, "bands": windows.bands, "count": n * windows.bands,
        "lanes": windows.lanes,
        "high": windows.high, "wide": windows.wide,
        "taps": windows.table.ctypes.data, "length": taps,
        "panels": len(table), "panel": table.ctypes.data,
    }, table  # fmt: skip
