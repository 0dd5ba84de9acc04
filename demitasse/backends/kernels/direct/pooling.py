"""MAX pooling of outputs that a thread has just computed, before they leave its cache."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from demitasse.backends import ops
from demitasse.backends.kernels.axes import Axes
from demitasse.backends.kernels.direct.bands import Band
from demitasse.backends.kernels.direct.windows import Windows
from demitasse.backends.kernels.language.kernel import FLOAT, WIDE, Kernel, Value

__all__ = ["POOL", "carry", "pool_values", "pooled"]

POOL = (
    "lines", "pool_down", "pool_right", "pool_top", "pool_left", "pool_breadth", "pixel", "outputs",
    "vectors", "vector",
)  # fmt: skip
"""Fields of a kernel that pools: rows of the convolution; rows and columns of it from one window to
the next; how far the first reaches beyond it above and on the left; columns that come out; bytes of
an output; bytes to where the outputs are in a lane's scratch; how many vectors there are, and where
their table is: bytes from where a pixel of what comes out begins."""

LEAST = -float(np.finfo(np.float32).max)
"""What windows begin with, as Caffe's do."""


def pool_values(windows: Windows, pool: ops.Pool, axes: Axes) -> tuple[dict[str, int], np.ndarray]:
    """Return the values of those fields, and a table to be kept alive."""
    table = np.array([FLOAT * place for _, place in axes.vectors], np.int64)
    return {
        "lines": windows.y[2], "pool_down": pool.stride[0], "pool_right": pool.stride[1],
        "pool_top": pool.pad[0], "pool_left": pool.pad[1], "pool_breadth": pool.top[3],
        "pixel": FLOAT * windows.pixel, "outputs": FLOAT * windows.copy,
        "vectors": len(table), "vector": table.ctypes.data,
    }, table  # fmt: skip


def carry(
    k: Kernel, f: SimpleNamespace, band: Band, outputs: Value, high: int
) -> tuple[Value, Value]:
    """Write that the rows a lane's last band has computed too are taken from there.

    Returns:
        The first row of the convolution that is computed, and that behind the last, both counted
        from the band's first.
    """
    above = k.most(k.minus(0, band.line), 0)
    lines = k.add(k.times(k.minus(band.rows, 1), f.pool_down), high)
    end = k.least(lines, k.minus(f.lines, band.line))
    common = k.minus(high, f.pool_down)
    carried = k.both(k.both(k.below(0, band.again), k.below(0, band.row)), k.below(0, common))
    size = k.times(f.right, f.pixel)
    with k.when(carried):
        source = k.add(outputs, k.times(k.times(f.band, f.pool_down), size))
        with k.loop(k.times(common, size), 0, FLOAT * k.width) as place:
            k.store(k.load(k.add(source, place.i)), k.add(outputs, place.i))
    return k.choose(carried, common, above), end


def pooled(
    k: Kernel, f: SimpleNamespace, band: Band, outputs: Value, ends: Value, shape: tuple[int, int]
) -> None:
    """Write the largest outputs of each window of a band.

    Args:
        k: The kernel.
        f: Its fields.
        band: The band.
        outputs: Where the outputs are.
        ends: The row behind the last one, counted from the band's first.
        shape: Rows and columns of a window.
    """
    high, wide = shape
    begins = k.most(k.minus(0, band.line), 0)
    next_row, size = k.times(f.right, f.pixel), FLOAT * k.width
    with k.loop(band.rows) as row, k.loop(f.pool_breadth) as column:
        top = k.times(row.i, f.pool_down)
        left = k.minus(k.times(column.i, f.pool_right), f.pool_left)
        bottom, right = k.add(top, high), k.add(left, wide)
        corner = k.add(outputs, k.times(top, next_row), k.times(left, f.pixel))
        whole = k.both(
            k.both(k.below(k.minus(begins, 1), top), k.below(bottom, k.add(ends, 1))),
            k.both(k.below(-1, left), k.below(right, k.add(f.right, 1))),
        )
        pixel = k.add(k.times(row.i, f.y_row), k.times(column.i, f.y_column))
        target = k.at(band.output, pixel)
        with k.loop(f.vectors) as vector:
            here = k.add(corner, k.times(vector.i, size))
            there = k.add(target, k.load_word(k.add(f.vector, k.times(vector.i, WIDE))))
            with k.cases(k.choose(whole, 1, 0)) as case:
                case(1)
                largest = k.constant(LEAST)
                for i in range(high):
                    line = k.add(here, k.times(next_row, i))
                    for j in range(wide):
                        value = k.load(k.add(line, k.times(f.pixel, j)))
                        largest = k.at_least(largest, value)
                k.store(largest, there)
                case(0)
                rows = k.most(k.minus(begins, top), 0)
                columns = k.most(k.minus(0, left), 0)
                last_row = k.least(high, k.minus(ends, top))
                last_column = k.least(wide, k.minus(f.right, left))
                with k.loop(last_row, rows, carry=[k.constant(LEAST)]) as down:
                    line = k.add(here, k.times(next_row, down.i))
                    with k.loop(last_column, columns, carry=down.values) as across:
                        value = k.load(k.add(line, k.times(f.pixel, across.i)))
                        across.next = [k.at_least(across.values[0], value)]
                    down.next = across.out
                k.store(down.out[0], there)
