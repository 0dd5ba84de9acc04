"""The gradient of a convolution's filters over tiles: sums of products at the points."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.axes import Axes
from demitasse.backends.kernels.language import Arguments, compiled
from demitasse.backends.kernels.language.kernel import FLOAT, Kernel
from demitasse.backends.kernels.products.products import products
from demitasse.backends.kernels.winograd.filters import FilterGradient
from demitasse.backends.kernels.winograd.matrices import Matrices, matrices
from demitasse.backends.kernels.winograd.multiply import PRODUCTS, panels, product_values
from demitasse.backends.kernels.winograd.scratch import Scratch
from demitasse.backends.kernels.winograd.strips import (
    BLOCK,
    Block,
    blocks,
    cut,
    image_fields,
    image_values,
)
from demitasse.backends.kernels.winograd.tiling import Tiling
from demitasse.backends.kernels.winograd.transforms import transform
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.ports import Gradient, Port, Reader, converted_bytes

__all__ = ["TiledFilterGradient"]

FIELDS = (*BLOCK, *PRODUCTS, *image_fields("x"), *image_fields("y"), "offsets")
"""Beside those of strips, products and images: the address of the bias's gradient. That and the
filters' is what is summed here, by every lane in a part of its own."""


@cache
def _kernel(taps: int, width: int) -> int:
    """Return the address of the kernel for filters of so many taps."""
    name = f"gradient{taps}x{width}"

    def write(module: Any) -> None:
        _write(module, name, matrices(taps), width)

    return compiled(name, write, name)[name]


def _write(module: Any, name: str, of: Matrices, width: int) -> None:
    side, step = len(of.input), of.outputs
    forth = transform(module, "forth", of.input, width)
    turn = transform(module, "turn", np.ascontiguousarray(of.output.T), width)
    k = Kernel(module, name, 1, width, exported=True)
    f = k.fields(FIELDS)
    data, sums = (
        (k.bytes(row), k.bytes(point))
        for row, point in ((f.data_row, f.data_point), (f.sum_row, f.sum_point))
    )
    with blocks(k, f) as block:
        scratch = block.scratch, k.add(block.scratch, f.copy)
        slopes = k.add(block.stack, f.sums)
        cut(k, f, "x", block, forth, (side, step, side - step), (block.stack, *data), scratch)
        cut(k, f, "y", block, turn, (step, step, 0), (slopes, *sums), scratch)
        block.wait()
        with panels(k, f, block, side * side) as panel:
            k.call_at(
                panel.multiply, panel.data, FLOAT, data[0], panel.sums, sums[0], panel.filters,
                panel.row, f.channels, block.tiles, block.again,
            )  # fmt: skip
        last = k.add(slopes, k.times(side * side - 1, sums[1]))
        _sum(k, f, block, last)
        block.wait()
    k.done()


def _sum(k: Kernel, f: Any, block: Block, slopes: Any) -> None:
    """Write the sum over a block's tiles at the last point, where each sums its outputs."""
    offsets = k.at(f.offsets, k.times(block.lane, f.sum_row))
    begin, end = block.part(k.divided(f.sum_row, k.width))
    with k.loop(end, begin) as vector:
        here = k.times(vector.i, FLOAT * k.width)
        with k.loop(block.tiles, carry=[k.constant(0.0), k.add(slopes, here)]) as tile:
            total, at = tile.values
            tile.next = [k.plus(total, k.load(at)), k.add(at, k.bytes(f.sum_row))]
        k.accumulate([(tile.out[0], k.add(offsets, here))], block.again)


class TiledFilterGradient:
    """What a Step calls to get the gradients of weights and bias.

    Args:
        engine: The engine.
        tiling: The convolution.
        source: Its input.
        gradient: The gradient of its output.
        weight: The gradient of its weights, in C order.
        bias: The gradient of its bias, or None.

    Raises:
        Declined: Channels do not lie side by side.
    """

    def __init__(
        self,
        engine: Engine,
        tiling: Tiling,
        source: Reader,
        gradient: Reader,
        weight: Gradient,
        bias: Gradient | None,
    ) -> None:
        self.engine, self.tiling = engine, tiling
        self.ports: tuple[Port, ...] = (source, gradient, weight, *([bias] if bias else []))
        self.source, self.gradient, self.weight, self.bias = source, gradient, weight, bias
        for port in self.ports:
            port.engine = engine
        self.kernel = _kernel(tiling.matrices.taps, tiling.width)
        self.scratch = Scratch(tiling)
        self.parts = 1 if tiling.shared else tiling.lanes
        self.total = tiling.points * tiling.weights
        x, self._x = image_values("x", Axes(source.layout, tiling.width), tiling.size, tiling.pad)
        y, self._y = image_values("y", Axes(gradient.layout, tiling.width), tiling.output)
        values, self._panels = product_values(tiling, products(tiling.width))
        self.offsets = np.zeros((self.parts, tiling.sum), np.float32)
        self.arguments = Arguments(
            FIELDS, **x, **y, **values, **self.scratch.values,
            filter_lane=self.total, offsets=address(self.offsets),
        )  # fmt: skip
        self.back = FilterGradient(tiling, self.parts)

    def __call__(self) -> None:
        source, gradient = self.source.array(), self.gradient.array()
        weight = self.weight.array()
        scratch, totals = self.engine.workspaces(self.scratch.size, self.parts * self.total)
        private, stacks = self.scratch.at(scratch)
        self.arguments.set(
            x_at=address(source), y_at=address(gradient), filters=address(totals),
            private=private, stacks=stacks,
        )  # fmt: skip
        self.arguments.run(self.kernel, self.tiling.threads)
        self.back(address(totals), address(weight))
        self.weight.done()
        if self.bias:
            self.bias.array()[...] = self.offsets[:, : self.tiling.filters].sum(axis=0)
            self.bias.done()

    @property
    def implementations(self) -> list[str]:
        """Names of the code that it runs."""
        return ["llvm:winograd"]

    @property
    def workspace(self) -> int:
        """Bytes it holds."""
        return converted_bytes(self.ports)
