"""Accuracy: one kernel counts, another adds up and divides."""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.parts import Parts
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.step import Declined, Operands

__all__ = ["AccuracyStep"]

MOST_PARTS = 1024
"""Into how many parts the positions are cut at most; each position is a block's work."""


class AccuracyStep(GpuStep[ops.Accuracy]):
    """The share of positions whose label is among the best; the host never waits.

    Shapes: scores (*outer, C, *inner), labels (*outer, *inner) -> accuracy ().
    """

    def __init__(self, engine: Engine, op: ops.Accuracy, at: Operands) -> None:
        super().__init__(engine, op, at)
        if op.tops > 1:
            message = "a second top, the accuracy of each class; the kernel computes that of all"
            raise Declined(message)
        classes, inner = op.bottom[op.axis], math.prod(op.bottom[op.axis + 1 :])
        positions = math.prod(op.bottom[: op.axis]) * inner
        length = max(1, -(-positions // MOST_PARTS))
        self.parts = parts = Parts(1, max(1, -(-positions // length)), length)
        ignored = (int(op.ignore_label is not None), op.ignore_label or 0)
        # the kernel divides by the number of labels that count instead of 0
        fixed = float(max(1, positions)) if op.ignore_label is None else 0.0
        self._count = engine.rows(
            *("loss", "accuracy", op.dtype, parts.count, classes),
            *(positions, classes, inner, op.top_k, *ignored, parts.count, length),
            reach=positions * classes,
        )
        self._divide = engine.rows(
            *("loss", "accuracy_of_parts", op.dtype, 1, parts.count), parts.count, fixed
        )

    def forward(self) -> None:
        at = self.at
        scores, labels = (blob.read() for blob in at.bottom)
        found = self.engine.scratch(self.op.dtype, *[self.parts.count] * 3)
        self._count(scores, labels, *found)
        odd = at.saved("not numbers", ()).buffer()
        self._divide(*found, at.top[0].buffer(), odd)
