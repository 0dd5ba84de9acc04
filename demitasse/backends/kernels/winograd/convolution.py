"""A convolution over tiles: to the points, products there, and back.

The same is the gradient of a convolution's input, which is a convolution of the output's gradient
with the filters turned round.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import address, aligned
from demitasse.backends.kernels.axes import Axes
from demitasse.backends.kernels.language import Arguments, compiled
from demitasse.backends.kernels.language.kernel import FLOAT, Kernel, Value
from demitasse.backends.kernels.products.products import products
from demitasse.backends.kernels.winograd.filters import Filters
from demitasse.backends.kernels.winograd.matrices import Matrices, matrices
from demitasse.backends.kernels.winograd.multiply import PRODUCTS, panels, product_values
from demitasse.backends.kernels.winograd.scratch import Scratch
from demitasse.backends.kernels.winograd.strips import (
    BLOCK,
    Block,
    blocks,
    cut,
    entries,
    image_fields,
    image_values,
    strips,
)
from demitasse.backends.kernels.winograd.tiling import Tiling
from demitasse.backends.kernels.winograd.transforms import columns, combined, line, transform
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.ports import Port, converted_bytes
from demitasse.backends.onednn.steps.conv_operands import ConvOperands
from demitasse.backends.step import Declined

__all__ = ["TiledConvolution"]

FIELDS = (*BLOCK, *PRODUCTS, *image_fields("x"), *image_fields("y"), "floor", "bias")
"""Beside those of strips, products and images: the addresses of what the output is raised to, and
of the offsets."""


PAIRS = (2, 2)
"""Windows that are pooled: four outputs, of which a tile has four times four."""


@cache
def _kernel(taps: int, width: int, *, pool: bool) -> int:
    """Return the address of the kernel for filters of so many taps, and perhaps pooling."""
    name = f"convolve{taps}x{width}{'pooled' if pool else ''}"

    def write(module: Any) -> None:
        _write(module, name, matrices(taps), width, pool=pool)

    return compiled(name, write, name)[name]


def _write(module: Any, name: str, of: Matrices, width: int, *, pool: bool) -> None:
    side, step = len(of.input), of.outputs
    forth = transform(module, "forth", of.input, width)
    back = _back(module, of, width, pool=pool)
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
        _join(k, f, block, back, (step, step // 2 if pool else step), totals)
        block.wait()
    k.done()


def _join(
    k: Kernel, f: Any, block: Block, back: Kernel, steps: tuple[int, int], totals: Value
) -> None:
    """Write the way back of all tiles of a block's strips.

    Args:
        k: The kernel.
        f: Its fields.
        block: The block.
        back: The way back of one tile.
        steps: Outputs of a tile in a row; how many come out of them.
        totals: Where the block's sums begin.
    """
    step, out = steps
    with strips(k, f, block) as (image, row, tile), entries(k, f, "y") as (offset, place):
        pixel = k.add(k.times(image, f.y_image), k.times(k.times(row, out), f.y_row))
        target = k.add(k.at(f.y_at, pixel), offset)
        with k.loop(f.right) as number:
            k.call(
                back,
                k.add(totals, place, k.bytes(k.times(k.add(tile, number.i), f.sum_row))),
                k.bytes(f.sum_point),
                k.at(target, k.times(k.times(number.i, out), f.y_column)),
                k.bytes(f.y_row), k.bytes(f.y_column),
                k.least(step, k.minus(f.y_height, k.times(row, step))),
                k.least(step, k.minus(f.y_breadth, k.times(number.i, step))),
                k.add(f.bias, place), f.floor, block.scratch,
            )  # fmt: skip


def _back(module: Any, of: Matrices, width: int, *, pool: bool) -> Kernel:
    """Return the kernel that takes one tile's sums at the points to its outputs.

    Its arguments are the first point's address and the bytes to the next one, the address of the
    first that comes out, the bytes to the next row and column, how many rows and columns of outputs
    there are, the addresses of the offsets and of the number that outputs are raised to, and
    scratch.

    Args:
        module: What it belongs to.
        of: The matrices.
        width: Filters of a vector.
        pool: Whether what comes out is the largest of each four outputs, of those that there are.
    """
    k = Kernel(module, "back", 10, width)
    source, point, target, row, column, rows, broad, offsets, floor, scratch = k.arguments
    side, step = len(of.input), 2 if pool else 1
    columns(k, of.output, source, (k.times(point, side), point), scratch)
    bias, least = k.load(offsets), k.spread(k.load_number(floor))
    with k.loop(rows, 0, step) as loop:
        values = combined(k, of.output, line(k, scratch, loop.i, side))
        if pool:
            # a row or column that is not there is replaced by the one beside it
            number = k.least(k.add(loop.i, 1), k.minus(rows, 1))
            below = combined(k, of.output, line(k, scratch, number, side))
            values = [k.at_least(one, other) for one, other in zip(values, below, strict=True)]
        first = k.add(target, k.times(k.divided(loop.i, step), row))
        for place in range(0, of.outputs, step):
            with k.when(k.below(place, broad)):
                value = values[place]
                if pool:
                    beside = k.select(k.below(place + 1, broad), values[place + 1], value)
                    value = k.at_least(value, beside)
                result = k.at_least(k.plus(value, bias), least)
                k.store(result, k.add(first, k.times(column, place // step)))
    k.done()
    return k


class TiledConvolution:
    """What a Step calls: source and target are ports, as those of one primitive.

    Args:
        engine: The engine.
        tiling: The convolution.
        parts: Its operands.
        filters: At the points.
        pool: What is done to the output: windows of four, side by side.

    Raises:
        Declined: Channels do not lie side by side, or the windows that are pooled do not divide the
            tiles.
    """

    def __init__(
        self,
        engine: Engine,
        tiling: Tiling,
        parts: ConvOperands,
        filters: Filters,
        pool: ops.Pool | None = None,
    ) -> None:
        if pool and not (pool.kernel == pool.stride == PAIRS and not any(pool.pad)):
            message = "pooling that does not divide tiles; winograd takes windows of 2 x 2"
            raise Declined(message)
        self.engine, self.tiling, self.parts, self.filters = engine, tiling, parts, filters
        self.ports: tuple[Port, ...] = (parts.source, parts.target)
        for port in self.ports:
            port.engine = engine
        self.kernel = _kernel(tiling.matrices.taps, tiling.width, pool=pool is not None)
        self.scratch = Scratch(tiling)
        self.offsets = aligned(tiling.sum)
        self.floor = np.array([0.0 if parts.relu else -np.inf], np.float32)
        x, self._x = image_values(
            "x", Axes(parts.source.layout, tiling.width), tiling.size, tiling.pad
        )
        y, self._y = image_values("y", Axes(parts.target.layout, tiling.width), tiling.output)
        kernels = products(tiling.width, packed=True)
        values, self._panels = product_values(tiling, kernels)
        self.arguments = Arguments(
            FIELDS, **x, **y, **values, **self.scratch.values,
            floor=address(self.floor), bias=address(self.offsets),
        )  # fmt: skip

    def __call__(self) -> None:
        parts = self.parts
        source, target = parts.source.array(), parts.target.array()
        filters = self.filters
        points = filters.points if parts.weight is None else filters.of(parts.weight)
        offsets = parts.offsets()
        if offsets is not None:
            self.offsets[: offsets.shape[0]] = offsets
        private, stacks = self.scratch.at(self.engine.workspaces(self.scratch.size)[0])
        self.arguments.set(
            x_at=address(source), y_at=address(target), filters=address(points),
            private=private, stacks=stacks,
        )  # fmt: skip
        self.arguments.run(self.kernel, self.tiling.threads)

    def update(self, weights: np.ndarray) -> None:
        """Take new weights, in C order."""
        self.filters.update(weights)

    @property
    def implementations(self) -> list[str]:
        """Names of the code that it runs."""
        return ["llvm:winograd"]

    @property
    def workspace(self) -> int:
        """Bytes it holds."""
        return self.filters.points.nbytes + converted_bytes(self.ports)
