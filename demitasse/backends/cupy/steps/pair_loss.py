"""Losses that compare two arrays element by element: two kernels forward, one backward."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.parts import Parts
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.step import Declined, Operands

__all__ = ["PairLossStep"]

KERNELS = {"euclidean": "euclidean_loss", "sigmoid": "cross_entropy_loss"}
"""By the loss."""


class PairLossStep(GpuStep[ops.PairLoss]):
    """The loss and its gradients, divided by what forward counted; the host never waits.

    Shapes: two bottoms of the same count -> loss ().
    """

    def __init__(self, engine: Engine, op: ops.PairLoss, at: Operands) -> None:
        super().__init__(engine, op, at)
        if not op.count:
            message = "no elements; kernels divide by a number of some"
            raise Declined(message)
        ignored = (int(op.ignore_label is not None), op.ignore_label or 0)
        self.parts = parts = Parts.of(1, op.count)
        name, about = KERNELS[op.loss], (op.dtype, op.count, *ignored)
        self._losses = engine.rows(
            *("loss", name, op.dtype, parts.count, parts.length),
            *(op.count, *ignored, parts.count, parts.length),
        )
        # the kernel divides by the number of elements that count instead of 0
        self._loss = engine.rows(
            *("sums", "loss_of_parts", op.dtype, 1, parts.count), parts.count, op.divisor or 0.0
        )
        self.wanted = at.propagate_down
        self._backward = engine.packs("loss", f"{name}_gradient", *about, *map(int, self.wanted))

    def forward(self) -> None:
        at = self.at
        a, b = (blob.read() for blob in at.bottom)
        totals, counts = self.engine.scratch(self.op.dtype, self.parts.count, self.parts.count)
        self._losses(a, b, totals, counts)
        divisor = at.saved("divisor", (1,)).buffer()
        self._loss(totals, counts, at.top[0].buffer(), divisor)

    def backward(self) -> None:
        at = self.at
        if not any(self.wanted):
            return
        a, b = (blob.read() for blob in at.bottom)
        weight, divisor = at.top[0].read_diff(), at.saved("divisor", (1,)).read()
        # the kernel does not write to what stands for a gradient that is not wanted
        da, db = (
            blob.diff_buffer() if want else a
            for blob, want in zip(at.bottom, self.wanted, strict=True)
        )
        self._backward(a, b, weight, divisor, da, db)
