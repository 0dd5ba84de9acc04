"""A direct convolution of few channels: windows times filters."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.direct.banding import Banding
from demitasse.backends.kernels.direct.bands import (
    Band,
    BandFields,
    band_values,
    each_band,
    each_panel,
)
from demitasse.backends.kernels.direct.pooling import PoolFields, carry, pool_values, pooled
from demitasse.backends.kernels.direct.window_products import window_products
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct, Values
from demitasse.backends.kernels.language.words import FLOAT, INT, Word
from demitasse.backends.kernels.rectifier import NOTHING, Rectifier

__all__ = ["DirectConvolution"]


class DirectFields(Struct):
    """Arguments of a direct convolution."""

    bands: BandFields
    """The bands."""
    rectifier: Address
    """Address of the rectifier's numbers: the slope of what is below 0, or the limits."""
    offsets: Address
    """Address of one offset for each element of all vectors of filters."""


class PooledFields(DirectFields):
    """Arguments of a direct convolution with MAX pooling."""

    pool: PoolFields
    """The pooling."""


@cache
def _kernel(width: int, pool: tuple[int, ...]) -> int:
    """Return the address of the kernel, which pools windows of a shape; () for none."""
    name = "x".join(map(str, ("direct", width, *pool)))
    write = _write_pooled if pool else _write
    return compiled(name, lambda module: write(module, name, width, *pool), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = DirectFields.read(k)
    y = f.bands.y
    with each_band(k, f.bands) as band:
        row_bytes, column_bytes = y.row_stride * FLOAT, y.column_stride * FLOAT
        _multiply(k, f, band, (k.word(0), band.rows), (band.output, row_bytes, column_bytes))
    k.done()


def _write_pooled(module: Any, name: str, width: int, high: int, wide: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = PooledFields.read(k)
    bands, pool = f.bands, f.pool
    with each_band(k, bands, line=lambda row: row * pool.step_down - pool.top) as band:
        outputs = band.copy + pool.outputs_bytes
        begin, end = carry(k, bands, pool, band, outputs, high)
        row_bytes = bands.y.columns * pool.pixel_bytes
        _multiply(k, f, band, (begin, end), (outputs, row_bytes, pool.pixel_bytes))
        pooled(k, bands, pool, band, outputs, end, (high, wide))
    k.done()


def _multiply(
    k: Kernel,
    f: DirectFields,
    band: Band,
    lines: tuple[Word, Word],
    target: tuple[Word, Word, Word],
) -> None:
    """Write the products of some rows of a band.

    Args:
        k: The kernel.
        f: Its fields.
        band: The band.
        lines: The first row, and the one after the last.
        target: Where the first output goes, and bytes to the next row and column.
    """
    bands, (begin, end), (output, row_bytes, column_bytes) = f.bands, lines, target
    with each_panel(k, bands, band.filters) as panel, k.loop(end, begin) as row:
        k.call_at(
            panel.product,
            band.copy + row.i * bands.step_down * bands.copied_columns * FLOAT,
            bands.tap_table,
            bands.taps * INT,
            panel.filters,
            output + row.i * row_bytes,
            column_bytes,
            panel.places,
            f.offsets + panel.first * k.vector_bytes,
            bands.y.columns,
            f.rectifier,
            panel.rests,
        )


class DirectConvolution:
    """A convolution of few channels, with an offset and perhaps a rectifier and MAX pooling.

    Args:
        banding: The convolution, and the pooling after it.
        y: The output.
        then: What becomes of the sums.

    Attributes:
        scratch_size: Elements of scratch memory that a call takes.
        filters: The filters of each panel, tap after tap. Shape: (taps * pixel_stride,).

    Raises:
        ValueError: The channels of the output are not contiguous.
    """

    def __init__(self, banding: Banding, y: Images, then: Rectifier = NOTHING) -> None:
        self.banding, width, op, pool = banding, banding.width, banding.op, banding.pool
        self._kernel = _kernel(width, pool.kernel if pool else ())
        self.scratch_size = banding.chunks * banding.chunk_scratch
        self.filters = aligned(banding.taps * banding.pixel_stride)
        self._offsets = aligned(banding.pixel_stride)
        places = [place for _, place in y.vectors(width)]
        if pool:
            places = list(range(0, banding.pixel_stride, width))
        fields: dict[str, np.ndarray | Values] = {
            "bands": band_values(
                banding,
                y,
                window_products(
                    width, op.kernel[1], op.dilation[1], op.stride[1], limited=then.limited
                ),
                banding.y[3],
                banding.row_table,
                banding.taps,
                places,
                filters=self.filters,
                filter_chunk_stride=0,
                chunk_scratch=banding.chunk_scratch,
            ),
            "rectifier": then.numbers(),
            "offsets": self._offsets,
        }
        self._arguments = Arguments(
            PooledFields.values(**fields, pool=pool_values(banding, pool, y))
            if pool
            else DirectFields.values(**fields)
        )

    def update(self, weights: np.ndarray) -> None:
        """Take new weights, in C order."""
        banding = self.banding
        m, taps, width = banding.y[1], banding.taps, banding.width
        by_tap = weights[: m * taps].reshape(m, taps).T
        for vectors, first in banding.panels:
            begin, columns = first * width, vectors * width
            some = banding.order[begin : begin + columns]
            part = self.filters[begin * taps : (begin + columns) * taps]
            part.reshape(taps, columns)[...] = by_tap[:, some]

    def take_offsets(self, offsets: np.ndarray) -> None:
        """Take new offsets, one for each filter; at first they are zeros."""
        np.take(offsets, self.banding.order, out=self._offsets)

    def __call__(
        self,
        source: np.ndarray,
        target: np.ndarray,
        scratch: np.ndarray,
    ) -> None:
        """Convolve.

        Args:
            source: The images, in C order.
            target: The output, in the memory that ``y`` describes.
            scratch: At least :attr:`scratch_size` elements.
        """
        each = {"bands.x.at": source, "bands.y.at": target, "bands.scratch": scratch}
        self._arguments.run(self._kernel, self.banding.tuning.threads, each)

    @property
    def code(self) -> str:
        """Name of what runs."""
        return self.banding.code
