"""A convolution of pictures: windows times filters."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from demitasse.backends.arrays import address, aligned
from demitasse.backends.kernels.axes import Axes
from demitasse.backends.kernels.direct.bands import BANDS, Band, band_values, bands, panels
from demitasse.backends.kernels.direct.pooling import POOL, carry, pool_values, pooled
from demitasse.backends.kernels.direct.products import window_products
from demitasse.backends.kernels.direct.windows import Windows
from demitasse.backends.kernels.language import Arguments, compiled
from demitasse.backends.kernels.language.kernel import FLOAT, WIDE, Kernel, Value
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.ports import Port, converted_bytes
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, refreshed

__all__ = ["PictureConvolution"]

FIELDS = (*BANDS, *POOL, "floor", "offsets")
"""Beside those of bands and pooling: the addresses of what the output is raised to, and of the
offsets."""


@cache
def _kernel(width: int, pool: tuple[int, ...]) -> int:
    """Return the address of the kernel, which pools windows of a shape; () for none."""
    name = "x".join(map(str, ("picture", width, *pool)))
    write = _write_pooled if pool else _write
    return compiled(name, lambda module: write(module, name, width, *pool), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = k.fields(FIELDS)
    with bands(k, f) as band:
        next_row, next_column = k.bytes(f.y_row), k.bytes(f.y_column)
        _multiply(k, f, band, (0, band.rows), (band.output, next_row, next_column))
    k.done()


def _write_pooled(module: Any, name: str, width: int, high: int, wide: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = k.fields(FIELDS)
    with bands(k, f, line=lambda row: k.minus(k.times(row, f.pool_down), f.pool_top)) as band:
        outputs = k.add(band.copy, f.outputs)
        begin, end = carry(k, f, band, outputs, high)
        _multiply(k, f, band, (begin, end), (outputs, k.times(f.right, f.pixel), f.pixel))
        pooled(k, f, band, outputs, end, (high, wide))
    k.done()


def _multiply(
    k: Kernel,
    f: SimpleNamespace,
    band: Band,
    lines: tuple[Value, Value],
    target: tuple[Value, Value, Value],
) -> None:
    """Write the products of some rows of a band.

    Args:
        k: The kernel.
        f: Its fields.
        band: The band.
        lines: The first row, and the one behind the last.
        target: Where the first output goes, and bytes to the next row and column.
    """
    begin, end = lines
    first_output, next_row, next_column = target
    with (
        panels(k, f, band.filters) as (multiply, filters, first, places),
        k.loop(end, begin) as row,
    ):
        k.call_at(
            multiply,
            k.at(band.copy, k.times(k.times(row.i, f.step_down), f.wide)),
            f.taps, k.times(f.length, WIDE), filters,
            k.add(first_output, k.times(row.i, next_row)), next_column, places,
            k.add(f.offsets, k.times(first, FLOAT * k.width)), f.right, f.floor,
        )  # fmt: skip


class PictureConvolution:
    """What a Step calls: source and target are ports, as those of one primitive.

    Args:
        engine: The engine.
        windows: The convolution, and the pooling behind it.
        parts: Its operands; the source is in C order.

    Raises:
        Declined: The target's channels do not lie side by side.
    """

    def __init__(self, engine: Engine, windows: Windows, parts: ConvOperands) -> None:
        self.engine, self.windows, self.parts = engine, windows, parts
        self.ports: tuple[Port, ...] = (parts.source, parts.target)
        for port in self.ports:
            port.engine = engine
        axes, width = Axes(parts.target.layout, windows.width), windows.width
        pool = windows.pool
        self.kernel = _kernel(width, pool.kernel if pool else ())
        self.filters = aligned(windows.taps * len(windows.order))
        self.offsets = aligned(len(windows.order))
        self.floor = np.array([0.0 if parts.relu else -np.inf], np.float32)
        places = [place for _, place in axes.vectors]
        more: dict[str, int] = {}
        if pool:
            places = list(range(0, windows.pixel, width))
            more, self._vectors = pool_values(windows, pool, axes)
        op, table = windows.op, windows.line_table
        products = window_products(width, op.kernel[1], op.dilation[1], op.stride[1])
        values, self._panels = band_values(windows, axes, products, windows.taps, places)
        values |= {"taps": address(table), "length": len(table)}
        self._table = table
        self.arguments = Arguments(
            FIELDS, **values, **more, filters=address(self.filters), floor=address(self.floor),
            offsets=address(self.offsets), scratch_size=FLOAT * windows.scratch,
        )  # fmt: skip
        self.version = (-1, -1)

    def update(self, weights: np.ndarray) -> None:
        """Take new weights, in C order."""
        windows = self.windows
        by_tap = weights[: windows.y[1] * windows.taps].reshape(windows.y[1], windows.taps).T
        for vectors, first in windows.panels:
            begin, columns = first * windows.width, vectors * windows.width
            some = windows.order[begin : begin + columns]
            part = self.filters[begin * windows.taps : (begin + columns) * windows.taps]
            part.reshape(windows.taps, columns)[...] = by_tap[:, some]

    def __call__(self) -> None:
        parts = self.parts
        source, target = parts.source.array(), parts.target.array()
        if parts.weight is not None:
            self.version = refreshed(parts.weight.data_memory, self.version, self.update)
        offsets = parts.offsets()
        if offsets is not None:
            np.take(offsets, self.windows.order, out=self.offsets)
        windows = self.windows
        [scratch] = self.engine.workspaces(windows.lanes * windows.scratch)
        self.arguments.set(x_at=address(source), y_at=address(target), scratch=address(scratch))
        self.arguments.run(self.kernel, windows.threads)

    @property
    def implementations(self) -> list[str]:
        """Names of the code that it runs."""
        return ["llvm:pictures"]

    @property
    def workspace(self) -> int:
        """Bytes it holds."""
        return self.filters.nbytes + converted_bytes(self.ports)
