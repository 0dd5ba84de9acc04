"""Batch normalisation: statistics by one block for a channel, the rest element by element."""

from __future__ import annotations

import math
from abc import abstractmethod

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.step import Operands

__all__ = ["BatchNormStep", "StoredBatchNormStep", "batch_norm"]


class _NormStep(GpuStep[ops.BatchNorm]):
    """What both kinds of statistics share; in place or not.

    Shapes: bottom (N, C, ...) -> top the same; params (C,), (C,), (1,).
    """

    def __init__(self, engine: Engine, op: ops.BatchNorm, at: Operands) -> None:
        super().__init__(engine, op, at)
        self.samples, self.channels = op.bottom[:2]
        self.plane, self.count = math.prod(op.bottom[2:]), math.prod(op.bottom)
        self.keep = at.backward and not op.use_global_stats
        """Whether backward needs what forward has normalised."""
        self._normalise = engine.each(
            *("batch_norm", "normalise", op.dtype, self.count),
            *(self.channels, self.plane, int(self.keep)),
        )

    def forward(self) -> None:
        at = self.at
        x = at.bottom[0].read()
        (mean,) = self.engine.scratch(self.op.dtype, self.channels)
        deviation = at.saved("deviation", (self.channels,)).buffer()
        self.measure(x, mean, deviation)
        y = at.top[0].buffer()
        kept = at.saved("normalised", self.op.bottom).buffer() if self.keep else y
        self._normalise(x, mean, deviation, y, kept)

    @abstractmethod
    def measure(self, x: Array, mean: Array, deviation: Array) -> None:
        """Write mean and deviation of each channel."""


class BatchNormStep(_NormStep):
    """By the statistics of the batch, which are added to the running sums."""

    def __init__(self, engine: Engine, op: ops.BatchNorm, at: Operands) -> None:
        super().__init__(engine, op, at)
        many = self.samples * self.plane
        correction = many / (many - 1) if many > 1 else 1.0
        sizes = (self.channels, self.samples, self.plane)
        row = ("batch_norm", "batch_statistics", op.dtype, self.channels, many)
        numbers = (*sizes, float(op.eps), float(op.fraction), correction)
        self._statistics = engine.rows(*row, *numbers)
        self._means = engine.rows(
            "batch_norm", "gradient_means", op.dtype, self.channels, many, *sizes
        )
        self._backward = engine.each(
            *("batch_norm", "normalise_gradient", op.dtype, self.count),
            *(self.channels, self.plane),
        )

    def measure(self, x: Array, mean: Array, deviation: Array) -> None:
        # read first: sums that are only on the host must be on the GPU before they are added to
        sums = [(blob.read(), blob.buffer())[1] for blob in self.at.params]
        self._statistics(x, mean, deviation, *sums)

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            y, dy = at.saved("normalised", self.op.bottom).read(), at.top[0].read_diff()
            deviation = at.saved("deviation", (self.channels,)).read()
            flat, along = self.engine.scratch(self.op.dtype, self.channels, self.channels)
            self._means(y, dy, flat, along)
            self._backward(y, dy, deviation, flat, along, at.bottom[0].diff_buffer())


class StoredBatchNormStep(_NormStep):
    """By the running averages, which stay as they are."""

    def __init__(self, engine: Engine, op: ops.BatchNorm, at: Operands) -> None:
        super().__init__(engine, op, at)
        self._statistics = engine.each(
            "batch_norm", "stored_statistics", op.dtype, self.channels, float(op.eps)
        )
        self._backward = engine.each(
            *("batch_norm", "stored_gradient", op.dtype, self.count),
            *(self.channels, self.plane),
        )

    def measure(self, x: Array, mean: Array, deviation: Array) -> None:
        del x
        self._statistics(*(blob.read() for blob in self.at.params), mean, deviation)

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            dy, deviation = at.top[0].read_diff(), at.saved("deviation", (self.channels,)).read()
            self._backward(dy, deviation, at.bottom[0].diff_buffer())


def batch_norm(
    engine: Engine, op: ops.BatchNorm, at: Operands
) -> BatchNormStep | StoredBatchNormStep:
    """Return the Step for the statistics that are to be used.

    Raises:
        Declined: The kernels do not compute in the operation's dtype.
    """
    kind = StoredBatchNormStep if op.use_global_stats else BatchNormStep
    return kind(engine, op, at)
