"""A convolution over tiles: to the points, products there, and back.

The same is the gradient of a convolution's input, which is a convolution of the output's gradient
with the filters turned round.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.jit import Arguments, compiled
from demitasse.backends.jit.kernel import FLOAT, Kernel
from demitasse.backends.onednn.engine import Engine, address
from demitasse.backends.onednn.layout import aligned
from demitasse.backends.onednn.ports import Port, Reader, Writer
from demitasse.backends.onednn.winograd.axes import Axes
from demitasse.backends.onednn.winograd.filters import Filters
from demitasse.backends.onednn.winograd.matrices import Matrices, matrices
from demitasse.backends.onednn.winograd.multiply import PRODUCTS, panels, product_values
from demitasse.backends.onednn.winograd.scratch import Scratch
from demitasse.backends.onednn.winograd.strips import (
    BLOCK,
    blocks,
    cut,
    entries,
    image_fields,
    image_values,
    strips,
)
from demitasse.backends.onednn.winograd.tiling import Tiling
from demitasse.backends.onednn.winograd.transforms import columns, combined, line, transform

__all__ = ["TiledConvolution"]

FIELDS = (*BLOCK, *PRODUCTS, *image_fields("x"), *image_fields("y"), "floor", "bias")
"""Beside those of strips, products and images: the addresses of what the output is raised to, and
of the offsets."""


@cache
def _kernel(taps: int, width: int) -> int:
    """Return the address of the kernel for filters of so many taps."""
    name = f"convolve{taps}x{width}"

    def write(module: Any) -> None:
        _write(module, name, matrices(taps), width)

    return compiled(name, write, name)[name]


def _write(module: Any, name: str, of: Matrices, width: int) -> None:
    side, step = len(of.input), of.outputs
    forth = transform(module, "forth", of.input, width)
    back = _back(module, of, width)
    k = Kernel(module, name, 1, width, exported=True)
    f = k.fields(FIELDS)
    data, sums = (k.bytes(f.data_row), k.bytes(f.data_point)), k.bytes(f.sum_row)
    with blocks(k, f) as block:
        copy, totals = k.add(block.scratch, f.copy), k.add(block.stack, f.sums)
        shape = side, step, side - step
        cut(k, f, "x", block, forth, shape, (block.stack, *data), (block.scratch, copy))
        block.wait()
        with panels(k, f, block, side * side) as panel:
            k.call_at(
                panel.multiply, panel.data, data[0], FLOAT, panel.filters, panel.row, panel.sums,
                sums, block.tiles, f.channels, 0,
            )  # fmt: skip
        block.wait()
        _join(k, f, block, back, step, totals)
        block.wait()
    k.done()


def _join(k: Kernel, f: Any, block: Any, back: Kernel, step: int, totals: Any) -> None:
    """Write the way back of all tiles of a block's strips."""
    with strips(k, f, block) as (image, row, tile), entries(k, f, "y") as (offset, place):
        top = k.times(row, step)
        pixel = k.add(k.times(image, f.y_image), k.times(top, f.y_row))
        target = k.add(k.at(f.y_at, pixel), offset)
        with k.loop(f.right) as number:
            left = k.times(number.i, step)
            k.call(
                back,
                k.add(totals, place, k.bytes(k.times(k.add(tile, number.i), f.sum_row))),
                k.bytes(f.sum_point),
                k.at(target, k.times(left, f.y_column)), k.bytes(f.y_row), k.bytes(f.y_column),
                k.least(step, k.minus(f.y_height, top)),
                k.least(step, k.minus(f.y_breadth, left)),
                k.add(f.bias, place), f.floor, block.scratch,
            )  # fmt: skip


def _back(module: Any, of: Matrices, width: int) -> Kernel:
    """Return the kernel that takes one tile's sums at the points to its outputs.

    Its arguments are the first point's address and the bytes to the next one, the first output's
    address, the bytes to the next row and column, how many rows and columns there are, the
    addresses of the offsets and of the number that outputs are raised to, and scratch.
    """
    k = Kernel(module, "back", 10, width)
    source, point, target, row, column, rows, broad, offsets, floor, scratch = k.arguments
    side = len(of.input)
    columns(k, of.output, source, (k.times(point, side), point), scratch)
    bias, least = k.load(offsets), k.spread(k.load_number(floor))
    with k.loop(rows) as loop:
        values = line(k, scratch, loop.i, side)
        first = k.add(target, k.times(loop.i, row))
        for place, value in enumerate(combined(k, of.output, values)):
            with k.when(k.below(place, broad)):
                result = k.at_least(k.plus(value, bias), least)
                k.store(result, k.add(first, k.times(column, place)))
    k.done()
    return k


class TiledConvolution:
    """What a Step calls: source and target are ports, as those of one primitive.

    Args:
        engine: The engine.
        tiling: The convolution.
        source: What is read.
        target: What is written.
        filters: At the points.
        weight: The parameter they are made from; None where somebody else updates them.
        bias: One offset for each channel of the output: a port, or an array; None for none.
        relu: Whether a rectifier follows.

    Raises:
        Missing: Channels do not lie side by side.
    """

    def __init__(
        self,
        engine: Engine,
        tiling: Tiling,
        source: Reader,
        target: Writer,
        filters: Filters,
        weight: Any,
        bias: Reader | np.ndarray | None = None,
        *,
        relu: bool = False,
    ) -> None:
        self.engine, self.tiling = engine, tiling
        self.ports: tuple[Port, ...] = (source, target)
        self.source, self.target, self.bias = source, target, bias
        self.filters, self.weight = filters, weight
        for port in self.ports:
            port.engine = engine
        self.kernel = _kernel(tiling.matrices.taps, tiling.width)
        self.scratch = Scratch(tiling)
        self.offsets = aligned(tiling.sum)
        self.floor = np.array([0.0 if relu else -np.inf], np.float32)
        x, self._x = image_values("x", Axes(source.layout, tiling.width), tiling.size, tiling.pad)
        y, self._y = image_values("y", Axes(target.layout, tiling.width), tiling.output)
        products, self._panels = product_values(tiling)
        self.arguments = Arguments(
            FIELDS, **x, **y, **products, **self.scratch.values,
            floor=address(self.floor), bias=address(self.offsets),
        )  # fmt: skip

    def __call__(self) -> None:
        source, target = self.source.array(), self.target.array()
        points = self.filters.points if self.weight is None else self.filters.of(self.weight)
        if self.bias is not None:
            offsets = self.bias.array() if isinstance(self.bias, Reader) else self.bias
            self.offsets[: offsets.shape[0]] = offsets
        private, stacks = self.scratch.at(self.engine.workspaces(self.scratch.size)[0])
        self.arguments.set(
            x_at=address(source), y_at=address(target), filters=address(points),
            private=private, stacks=stacks,
        )  # fmt: skip
        self.arguments.run(self.kernel, self.tiling.lanes)

    @property
    def implementations(self) -> list[str]:
        """Names of the code that it runs."""
        return ["jit:winograd"]

    @property
    def workspace(self) -> int:
        """Bytes it holds."""
        converted = 0 if self.source.scratch is None else self.source.scratch.nbytes
        return self.filters.points.nbytes + converted
