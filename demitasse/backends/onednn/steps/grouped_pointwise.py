"""Convolution of single pixels in groups that fill no blocks of channels, as products of matrices.

The library's convolutions pad the channels of each group to whole blocks. With the channels last, a
group's pixels are the rows of a matrix already, whose rows lie apart: the library multiplies such
matrices as they are, one for each group, at full speed.
"""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.onednn.library.candidates import BLOCK
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.ports import Call, Gradient, Port, Reader, Writer
from demitasse.backends.onednn.steps.windows import WindowStep
from demitasse.backends.step import Declined, Operands
from demitasse.backends.windows import ConvGeometry

__all__ = ["GroupedPointwiseStep"]


class GroupedPointwiseStep(WindowStep[ops.Conv]):
    """One bottom, one top, both with their channels last; gradients are wanted."""

    def __init__(self, engine: Engine, op: ops.Conv, at: Operands) -> None:
        super().__init__(engine, op, at)
        if not at.backward or op.bias:
            message = "products for groups of pixels are for gradients, without a bias"
            raise Declined(message)
        if {*op.kernel, *op.stride} != {1} or any(op.pad):
            message = "windows of more than a pixel; products take pixels by themselves"
            raise Declined(message)
        c, m = self.image[1] // op.group, self.maps[1] // op.group
        if op.group == 1 or 1 in (c, m) or not (c % BLOCK or m % BLOCK):
            message = (
                f"{op.group} groups of {c} channels to {m}; the library convolves one group, "
                f"channels by themselves, and whole blocks of {BLOCK}"
            )
            raise Declined(message)
        self._sizes = math.prod(self.image) // self.image[1], c, m

    def geometry(self) -> ConvGeometry:
        return ConvGeometry.between(self.op, self.op.bottom, self.op.top)

    def prepare(self) -> None:
        at = self.at
        written = Writer(Arg.DST, at.top[0], self.engine.innermost_layout(self.maps, 1))
        self.forward_calls = [
            self._product(
                (self._pixels(Arg.SRC), self._rows(self.image[1])),
                (self._weight(Arg.WEIGHTS), self._filters(turned=True)),
                (written, self._rows(self.maps[1])),
            )
        ]

    def prepare_backward(self) -> None:
        at = self.at
        if at.param_propagate_down[0]:
            weight = Gradient(Arg.DST, at.params[0], self.engine.plain(self.w))
            self.backward_calls.append(
                self._product(
                    (self._results(Arg.SRC), self._rows(self.maps[1], turned=True)),
                    (self._pixels(Arg.WEIGHTS), self._rows(self.image[1])),
                    (weight, self._filters()),
                )
            )
        if at.propagate_down[0]:
            layout = self.engine.innermost_layout(self.image, 1)
            written = Writer(Arg.DST, at.bottom[0], layout, diff=True)
            self.backward_calls.append(
                self._product(
                    (self._results(Arg.SRC), self._rows(self.maps[1])),
                    (self._weight(Arg.WEIGHTS), self._filters()),
                    (written, self._rows(self.image[1])),
                )
            )

    def _product(self, *matrices: tuple[Port, int]) -> Call:
        """Return the product of the first two, of which the third is made; each is seen so."""
        engine, ports = self.engine, []
        for port, seen in matrices:
            port.descriptor = seen
            ports.append(port)
        (_, one), (_, two), (_, result) = matrices
        found = engine.describe("matmul", one, two, None, result, engine.attributes)
        return Call(engine, found, ports)

    def _rows(self, channels: int, *, turned: bool = False) -> int:
        """Return how the groups' matrices lie: pixels by channels, or the other way round."""
        rows, each = self._sizes[0], channels // self.op.group
        if turned:
            return self.engine.strided((self.op.group, each, rows), (each, 1, channels))
        return self.engine.strided((self.op.group, rows, each), (each, channels, 1))

    def _filters(self, *, turned: bool = False) -> int:
        """Return how the groups' filters lie: outputs by channels, or the other way round."""
        _, c, m = self._sizes
        if turned:
            return self.engine.strided((self.op.group, c, m), (c * m, 1, c))
        return self.engine.strided((self.op.group, m, c), (c * m, c, 1))

    def _pixels(self, role: int) -> Reader:
        return Reader(role, self.at.bottom[0], self.engine.innermost_layout(self.image, 1))

    def _results(self, role: int) -> Reader:
        layout = self.engine.innermost_layout(self.maps, 1)
        return Reader(role, self.at.top[0], layout, diff=True)

    def _weight(self, role: int) -> Reader:
        return Reader(role, self.at.params[0], self.engine.plain(self.w))
