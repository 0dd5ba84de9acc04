"""Channels of each image times a number of its own: gates, as nets have that weigh their channels.

A Scale by a second bottom (N, C), or an Axpy, which adds other images too.
"""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.onednn.library.attributes import lent_attributes
from demitasse.backends.onednn.library.candidates import in_some_layout
from demitasse.backends.onednn.library.constants import Algorithm, Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.step import Declined, Operand, Operands

__all__ = ["AxpyStep", "GatedScaleStep"]


class _GateStep(OnednnStep[ops.Axpy | ops.Scale]):
    """y = x * gate + other, in the layout of x.

    Args:
        engine: The engine.
        op: The operation.
        at: Its blobs.
        x: The images, (N, C, *spatial).
        gate: A number for each channel of each image.
        other: What is added, as x; None for nothing.

    Raises:
        Declined: Gradients are wanted.
    """

    def __init__(
        self,
        engine: Engine,
        op: ops.Axpy | ops.Scale,
        at: Operands,
        *,
        x: Operand,
        gate: Operand,
        other: Operand | None = None,
    ) -> None:
        super().__init__(engine, op, at)
        if at.backward:
            message = "gradients are wanted; the library multiplies with gates in one direction"
            raise Declined(message)
        self._x, self._gate, self._other = x, gate, other

    def prepare(self) -> None:
        expected = self.engine.expected(self._x.data_memory, self._x.shape)
        in_some_layout(self.engine, expected, self._prepare_in)

    def _prepare_in(self, layout: Layout) -> None:
        engine, [top] = self.engine, self.at.top
        n, c, *spatial = self._x.shape
        gates = engine.plain((n, c, *[1] * len(spatial)))
        other = None if self._other is None else layout.handle
        with lent_attributes(engine.library, other=other) as attributes:
            found = engine.describe(
                "binary", Algorithm.MUL, layout.handle, gates.handle, layout.handle, attributes
            )
        ports = [
            Reader(Arg.SRC, self._x, layout),
            Reader(Arg.SECOND_SRC, self._gate, gates),
        ]
        if self._other is not None:
            ports.append(Reader(Arg.ADDED, self._other, layout))
        self.forward_calls = [Call(engine, found, [*ports, Writer(Arg.DST, top, layout)])]


class AxpyStep(_GateStep):
    """The second bottom times the first, and the third."""

    def __init__(self, engine: Engine, op: ops.Axpy, at: Operands) -> None:
        gate, x, other = at.bottom
        super().__init__(engine, op, at, x=x, gate=gate, other=other)


class GatedScaleStep(_GateStep):
    """The first bottom times the second, which has the first one's first two axes."""

    def __init__(self, engine: Engine, op: ops.Scale, at: Operands) -> None:
        shape = at.bottom[0].shape
        gated = (1, math.prod(shape[:2]), math.prod(shape[2:]))
        if len(at.bottom) == 1 or op.bias or (op.outer, op.dim, op.inner) != gated:
            message = "factors that are no second bottom's, one for each channel of each image"
            raise Declined(message)
        x, gate = at.bottom
        super().__init__(engine, op, at, x=x, gate=gate)
