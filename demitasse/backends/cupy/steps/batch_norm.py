"""Batch normalisation: statistics by one block for a channel, the rest element by element."""

from __future__ import annotations

import math
from typing import Any

from demitasse.backends import ops
from demitasse.backends.base import Array, Operands, Step
from demitasse.backends.cupy.backend import CupyBackend
from demitasse.backends.cupy.step import DTYPES, EngineStep

__all__ = ["BatchNormStep", "StoredBatchNormStep"]


class _Step(EngineStep):
    """What both share. Shapes: bottom (N, C, ...) -> top the same; params (C,), (C,), (1,)."""

    def __init__(self, backend: Any, op: ops.BatchNorm, operands: Operands) -> None:
        super().__init__(backend, operands)
        self.op = op
        self.samples, self.channels = op.bottom[:2]
        self.plane, self.count = math.prod(op.bottom[2:]), math.prod(op.bottom)
        self.sizes = (self.channels, self.samples, self.plane)
        self.keep = operands.backward and not op.use_global_stats
        each, sizes = self.engine.each, (self.channels, self.plane)
        self._normalise = each(
            "batch_norm", "normalise", op.dtype, self.count, *sizes, int(self.keep)
        )

    def forward(self) -> None:
        at = self.operands
        x = at.bottom[0].read()
        (mean,) = self.engine.scratch(self.op.dtype, self.channels)
        deviation = at.saved("deviation", (self.channels,)).buffer()
        self.measure(x, mean, deviation)
        y = at.top[0].buffer()
        kept = at.saved("normalised", self.op.bottom).buffer() if self.keep else y
        self._normalise(x, mean, deviation, y, kept)

    def measure(self, x: Array, mean: Array, deviation: Array) -> None:
        """Write mean and deviation of each channel."""
        raise NotImplementedError


class BatchNormStep(_Step):
    """Statistics of the batch, which also feed the running sums."""

    def __init__(self, backend: Any, op: ops.BatchNorm, operands: Operands) -> None:
        super().__init__(backend, op, operands)
        many = self.samples * self.plane
        correction = many / (many - 1) if many > 1 else 1.0
        row = ("batch_norm", "batch_statistics", op.dtype, self.channels, many)
        numbers = (*self.sizes, float(op.eps), float(op.fraction), correction)
        self._statistics = self.engine.rows(*row, *numbers)
        self._means = self.engine.rows(
            "batch_norm", "gradient_means", op.dtype, self.channels, many, *self.sizes
        )
        sizes = (self.channels, self.plane)
        self._backward = self.engine.each(
            "batch_norm", "normalise_gradient", op.dtype, self.count, *sizes
        )

    def measure(self, x: Array, mean: Array, deviation: Array) -> None:
        sums = [(blob.read(), blob.buffer())[1] for blob in self.operands.params]
        self._statistics(x, mean, deviation, *sums)

    def backward(self) -> None:
        at = self.operands
        if at.propagate_down[0]:
            y, dy = at.saved("normalised", self.op.bottom).read(), at.top[0].read_diff()
            deviation = at.saved("deviation", (self.channels,)).read()
            flat, along = self.engine.scratch(self.op.dtype, self.channels, self.channels)
            self._means(y, dy, flat, along)
            self._backward(y, dy, deviation, flat, along, at.bottom[0].diff_buffer())


class StoredBatchNormStep(_Step):
    """The running averages of what was seen in training."""

    def __init__(self, backend: Any, op: ops.BatchNorm, operands: Operands) -> None:
        super().__init__(backend, op, operands)
        self._statistics = self.engine.each(
            "batch_norm", "stored_statistics", op.dtype, self.channels, float(op.eps)
        )
        sizes = (self.channels, self.plane)
        self._backward = self.engine.each(
            "batch_norm", "stored_gradient", op.dtype, self.count, *sizes
        )

    def measure(self, x: Array, mean: Array, deviation: Array) -> None:
        del x
        self._statistics(*(blob.read() for blob in self.operands.params), mean, deviation)

    def backward(self) -> None:
        at = self.operands
        if at.propagate_down[0]:
            dy, deviation = at.top[0].read_diff(), at.saved("deviation", (self.channels,)).read()
            self._backward(dy, deviation, at.bottom[0].diff_buffer())


@CupyBackend.lowers(ops.BatchNorm)
def lower(backend: Any, op: ops.BatchNorm, operands: Operands) -> Step | None:
    """Lower both kinds of statistics, in place or not."""
    if op.dtype not in DTYPES:
        return None
    kind = StoredBatchNormStep if op.use_global_stats else BatchNormStep
    return kind(backend, op, operands)
