"""Channels of each image times a number that the net computes: Axpy, and Scale with two bottoms."""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.onednn.steps.own_kernels import gates_call
from demitasse.backends.step import Declined, Operand, Operands

__all__ = ["AxpyStep", "GatedScaleStep"]


class _GateStep(OnednnStep[ops.Axpy | ops.Scale]):
    """The forward pass of both, in the layout of what is multiplied, or with the channels last.

    Args:
        engine: The engine.
        op: The operation.
        at: Its blobs.
        gates: The numbers, one for each channel of each image.
        x: What is multiplied.
        other: What is added, or None.

    Raises:
        Declined: Gradients are wanted, or the channels are no whole vectors.
    """

    def __init__(
        self,
        engine: Engine,
        op: ops.Axpy | ops.Scale,
        at: Operands,
        gates: Operand,
        x: Operand,
        other: Operand | None,
    ) -> None:
        super().__init__(engine, op, at)
        if at.backward:
            message = "gradients of what the net multiplies with; our kernels compute it without"
            raise Declined(message)
        self._blobs = gates, x, other

    def prepare(self) -> None:
        x = self._blobs[1]
        engine, found = self.engine, self.engine.expected(x.data_memory, x.shape)
        row = engine.plain((math.prod(x.shape[:2]),))
        for layout in dict.fromkeys((engine.whole(found), engine.innermost_layout(x.shape, 1))):
            call = gates_call(engine, *self._ports(layout, row))
            if call is not None:
                self.forward_calls = [call]
                return
        message = f"{x.shape[1]} channels; our kernels take whole vectors of them"
        raise Declined(message)

    def _ports(self, layout: Layout, row: Layout) -> tuple[Reader, Reader, Reader | None, Writer]:
        gates, x, other = self._blobs
        added = Reader(Arg.ADDED, other, layout) if other is not None else None
        target = Writer(Arg.DST, self.at.top[0], layout)
        return Reader(Arg.SECOND_SRC, gates, row), Reader(Arg.SRC, x, layout), added, target


class AxpyStep(_GateStep):
    """y = a x + b."""

    def __init__(self, engine: Engine, op: ops.Axpy, at: Operands) -> None:
        super().__init__(engine, op, at, *at.bottom)


class GatedScaleStep(_GateStep):
    """y = x s, with one s for each channel of each image."""

    def __init__(self, engine: Engine, op: ops.Scale, at: Operands) -> None:
        if len(at.bottom) == 1:
            message = "learned factors; our kernels of gates take computed ones"
            raise Declined(message)
        x, gates = at.bottom
        whole = len(x.shape) > 1 and (op.outer, op.dim) == (1, math.prod(x.shape[:2]))
        if op.bias or not whole:
            message = "factors over other axes, or an offset; our kernels take one for each channel"
            raise Declined(message)
        super().__init__(engine, op, at, gates, x, None)
