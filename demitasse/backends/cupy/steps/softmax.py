"""Softmax, and softmax with the multinomial logistic loss."""

from __future__ import annotations

import math
from typing import Any

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.cupy.backend import CupyBackend
from demitasse.backends.cupy.library.engine import Engine, Launch
from demitasse.backends.cupy.step import DTYPES, EngineStep

__all__ = ["SoftmaxLossStep", "SoftmaxStep"]


def _kernel(engine: Engine, op: ops.Softmax | ops.SoftmaxLoss, ending: str = "") -> Launch:
    """Return the kernel for the softmax of ``op``, or with ``ending`` for its gradient."""
    outer, classes, inner = _sizes(op)
    if inner == 1:
        name = f"softmax_rows{ending}"
        return engine.rows("softmax", name, op.dtype, outer, classes, outer, classes)
    name, reach = f"softmax_places{ending}", outer * classes * inner
    return engine.each("softmax", name, op.dtype, outer * inner, classes, inner, reach=reach)


def _sizes(op: ops.Softmax | ops.SoftmaxLoss) -> tuple[int, int, int]:
    """Return the sizes before, on and behind the axis."""
    axis = op.axis
    return math.prod(op.bottom[:axis]), op.bottom[axis], math.prod(op.bottom[axis + 1 :])


class SoftmaxStep(EngineStep):
    """y = exp(x) / sum of exp(x) along one axis; may run in place."""

    def __init__(self, backend: Any, op: ops.Softmax, operands: Operands) -> None:
        super().__init__(backend, operands)
        self._forward = _kernel(self.engine, op)
        self._backward = _kernel(self.engine, op, "_gradient")

    def forward(self) -> None:
        x = self.operands.bottom[0].read()
        self._forward(x, self.operands.top[0].buffer())

    def backward(self) -> None:
        at = self.operands
        if at.propagate_down[0]:
            y, dy = at.top[0].read(), at.top[0].read_diff()
            self._backward(y, dy, at.bottom[0].diff_buffer())


class SoftmaxLossStep(EngineStep):
    """The loss and, divided the same way, its gradient; nothing waits for the device.

    Shapes: scores (*outer, C, *inner), one label for each place -> loss ().
    """

    def __init__(self, backend: Any, op: ops.SoftmaxLoss, operands: Operands) -> None:
        super().__init__(backend, operands)
        self.shape = op.bottom
        outer, classes, inner = _sizes(op)
        places, count = outer * inner, outer * classes * inner
        ignored = (int(op.ignore_label is not None), op.ignore_label or 0)
        fixed = _divisor(op, outer, places)
        self._softmax = _kernel(self.engine, op)
        numbers = (places, classes, inner, *ignored, fixed)
        self._loss = self.engine.rows(
            "softmax", "softmax_loss", op.dtype, 1, places, *numbers, reach=count
        )
        self._backward = self.engine.each(
            "softmax", "softmax_loss_gradient", op.dtype, count, classes, inner, *ignored
        )

    def forward(self) -> None:
        at = self.operands
        x, labels = at.bottom[0].read(), at.bottom[1].read()
        # a second top shares this memory
        probabilities = at.saved("prob", self.shape).buffer()
        self._softmax(x, probabilities)
        divisor = at.saved("divisor", (1,)).buffer()
        self._loss(probabilities, labels, at.top[0].buffer(), divisor)

    def lower_backward(self, operands: Operands) -> bool:
        # labels have no gradient; the layer says so
        return super().lower_backward(operands) and not operands.propagate_down[1]

    def backward(self) -> None:
        at = self.operands
        if at.propagate_down[0]:
            probabilities, divisor = at.saved("prob", self.shape), at.saved("divisor", (1,))
            labels, weight = at.bottom[1].read(), at.top[0].read_diff()
            known = (probabilities.read(), labels, weight, divisor.read())
            self._backward(*known, at.bottom[0].diff_buffer())


def _divisor(op: ops.SoftmaxLoss, batch: int, places: int) -> float:
    """Return what the loss is divided by; 0 for the number of places that count."""
    match op.normalization:
        case "VALID" if op.ignore_label is not None:
            return 0.0
        case "FULL" | "VALID":
            return max(1.0, float(places))
        case "BATCH_SIZE":
            return max(1.0, float(batch))
        case _:
            return 1.0


@CupyBackend.lowers(ops.Softmax)
def lower(backend: Any, op: ops.Softmax, operands: Operands) -> Step | None:
    """Lower along any axis."""
    return SoftmaxStep(backend, op, operands) if op.dtype in DTYPES else None


@CupyBackend.lowers(ops.SoftmaxLoss)
def lower_loss(backend: Any, op: ops.SoftmaxLoss, operands: Operands) -> Step | None:
    """Lower every normalisation, with or without an ignored label."""
    return SoftmaxLossStep(backend, op, operands) if op.dtype in DTYPES else None
