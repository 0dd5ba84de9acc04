"""MAX pooling of outputs that a thread has just computed, before they leave its cache."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.kernels.direct.banding import Banding
from demitasse.backends.kernels.direct.bands import Band, BandFields
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Struct, Values
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Word,
    choose,
    maximum,
    minimum,
    raised,
)

__all__ = ["PoolFields", "carry", "pool_values", "pooled"]

LEAST = -float(np.finfo(np.float32).max)
"""Initial value of MAX pooling, as in Caffe."""


class PoolFields(Struct):
    """Pooling of a convolution's outputs."""

    lines: Word
    """Rows of the convolution's outputs."""
    step_down: Word
    """Rows of them from one window to that below."""
    step_right: Word
    """Columns of them from one window to the next."""
    top: Word
    """Rows that the first window reaches above them."""
    left: Word
    """Columns that it reaches to the left of them."""
    columns: Word
    """Output columns."""
    pixel_bytes: Word
    """Bytes of an output."""
    outputs_bytes: Word
    """Bytes from the beginning of a chunk's scratch to the outputs."""
    vectors: Word
    """Vectors of an output."""
    vector_table: Address
    """Address of their table: bytes from where an output pixel begins."""


def pool_values(banding: Banding, pool: ops.Pool, y: Images) -> Values:
    """Return the values of those fields."""
    table = np.array([FLOAT * place for _, place in y.vectors(banding.width)], np.int64)
    return PoolFields.values(
        lines=banding.y[2],
        step_down=pool.stride[0],
        step_right=pool.stride[1],
        top=pool.pad[0],
        left=pool.pad[1],
        columns=pool.top[3],
        pixel_bytes=FLOAT * banding.pixel_stride,
        outputs_bytes=FLOAT * banding.copy_size,
        vectors=len(table),
        vector_table=table,
    )


def carry(
    k: Kernel, f: BandFields, p: PoolFields, band: Band, outputs: Word, high: int
) -> tuple[Word, Word]:
    """Write that the rows a chunk's last band has computed too are taken from there.

    Args:
        k: The kernel.
        f: Its fields of bands.
        p: Its fields of pooling.
        band: The band.
        outputs: Address of the outputs.
        high: Rows of a window.

    Returns:
        The first row of the convolution that is computed, and that after the last, both counted
        from the band's first.
    """
    above = maximum(-band.line, 0)
    lines = (band.rows - 1) * p.step_down + high
    end = minimum(lines, p.lines - band.line)
    common = high - p.step_down
    carried = (band.again > 0) & (band.row > 0) & (common > 0)
    row_bytes = f.y.columns * p.pixel_bytes
    with k.when(carried):
        source = outputs + f.rows_per_band * p.step_down * row_bytes
        with k.loop(common * row_bytes, 0, k.vector_bytes) as place:
            k.store(k.load(source + place.i), outputs + place.i)
    return choose(carried, common, above), end


def pooled(
    k: Kernel,
    f: BandFields,
    p: PoolFields,
    band: Band,
    outputs: Word,
    end: Word,
    shape: tuple[int, int],
) -> None:
    """Write the largest outputs of each window of a band.

    Args:
        k: The kernel.
        f: Its fields of bands.
        p: Its fields of pooling.
        band: The band.
        outputs: Address of the outputs.
        end: The row after the last one, counted from the band's first.
        shape: Rows and columns of a window.
    """
    high, wide = shape
    begin = maximum(-band.line, 0)
    row_bytes = f.y.columns * p.pixel_bytes
    with k.loop(band.rows) as row, k.loop(p.columns) as column:
        top, left = row.i * p.step_down, column.i * p.step_right - p.left
        bottom, right = top + high, left + wide
        corner = outputs + top * row_bytes + left * p.pixel_bytes
        inside = (top >= begin) & (bottom <= end) & ((left >= 0) & (right <= f.y.columns))
        target = band.output + (row.i * f.y.row_stride + column.i * f.y.column_stride) * FLOAT
        with k.loop(p.vectors) as vector:
            here = corner + vector.i * k.vector_bytes
            there = target + k.load_word(p.vector_table + vector.i * INT)
            with k.cases(choose(inside, 1, 0)) as case:
                case(1)
                largest = k.constant(LEAST)
                for i in range(high):
                    line = here + row_bytes * i
                    for j in range(wide):
                        largest = raised(largest, k.load(line + p.pixel_bytes * j))
                k.store(largest, there)
                case(0)
                first_row, first_column = maximum(begin - top, 0), maximum(-left, 0)
                last_row = minimum(high, end - top)
                last_column = minimum(wide, f.y.columns - left)
                with k.loop(last_row, first_row, vectors=[k.constant(LEAST)]) as down:
                    line = here + row_bytes * down.i
                    with k.loop(last_column, first_column, vectors=down.vectors) as across:
                        value = k.load(line + p.pixel_bytes * across.i)
                        across.vectors = [raised(across.vectors[0], value)]
                    down.vectors = across.vectors
                k.store(down.vectors[0], there)
