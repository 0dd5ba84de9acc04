"""SoftmaxWithLoss: a kernel for the softmax, and two that sum the loss on the GPU."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.parts import Parts
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.cupy.steps.softmax import sizes, softmax_kernel
from demitasse.backends.losses import loss_divisor
from demitasse.backends.step import Operands

__all__ = ["SoftmaxLossStep"]


class SoftmaxLossStep(GpuStep[ops.SoftmaxLoss]):
    """The loss and its gradient, both divided by what forward counted; the host never waits.

    Shapes: scores (*outer, C, *inner), labels (*outer, *inner) -> loss ().
    """

    def __init__(self, engine: Engine, op: ops.SoftmaxLoss, at: Operands) -> None:
        super().__init__(engine, op, at)
        outer, classes, inner = sizes(op)
        labels, count = outer * inner, outer * classes * inner
        ignored = (int(op.ignore_label is not None), op.ignore_label or 0)
        some_ignored = op.ignore_label is not None
        divisor = loss_divisor(op.normalization, outer, labels, some_ignored=some_ignored)
        fixed = divisor or 0.0  # the kernel counts the labels that are not ignored
        self._softmax = softmax_kernel(engine, op, op.dtype)
        self.parts = parts = Parts.of(1, labels)
        numbers = (labels, classes, inner, *ignored, parts.count, parts.length)
        self._losses = engine.rows(
            *("softmax", "softmax_loss", op.dtype, parts.count, parts.length, *numbers),
            reach=count,
        )
        self._loss = engine.rows(
            "sums", "loss_of_parts", op.dtype, 1, parts.count, parts.count, fixed
        )
        self._backward = engine.packs(
            "softmax", "softmax_loss_gradient", op.dtype, count, classes, inner, *ignored
        )

    def forward(self) -> None:
        at = self.at
        x, labels = at.bottom[0].read(), at.bottom[1].read()
        # a second top shares this memory
        probabilities = at.saved("prob", self.op.bottom).buffer()
        self._softmax(x, probabilities)
        divisor = at.saved("divisor", (1,)).buffer()
        totals, counts = self.engine.scratch(self.op.dtype, self.parts.count, self.parts.count)
        self._losses(probabilities, labels, totals, counts)
        self._loss(totals, counts, at.top[0].buffer(), divisor)

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            probabilities, divisor = at.saved("prob", self.op.bottom), at.saved("divisor", (1,))
            labels, weight = at.bottom[1].read(), at.top[0].read_diff()
            known = (probabilities.read(), labels, weight, divisor.read())
            self._backward(*known, at.bottom[0].diff_buffer())
