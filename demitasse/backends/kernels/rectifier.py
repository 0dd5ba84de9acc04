"""Epilogue of a convolution's sums: ReLU, Clip, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demitasse.backends.arrays import aligned

__all__ = ["NOTHING", "RELU", "Rectifier"]


@dataclass(frozen=True)
class Rectifier:
    """A slope for what is below 0, or limits in its place. NaN stays NaN.

    Slopes are numbers that a kernel reads, limits are other code.

    Attributes:
        slope: What is below 0 is multiplied with it: 0 for ReLU, which makes NaN of minus infinity
            as Caffe's does; 1 for nothing.
        limits: The least result and the largest, which infinities become; None for none.
    """

    slope: float = 1.0
    limits: tuple[float, float] | None = None

    @property
    def limited(self) -> bool:
        """True if it has limits."""
        return self.limits is not None

    def numbers(self, channels: int = 1) -> np.ndarray:
        """Return what a kernel reads: a slope for each of so many channels, or both limits."""
        numbers = aligned(channels if self.limits is None else len(self.limits))
        numbers[...] = self.slope if self.limits is None else self.limits
        return numbers


NOTHING = Rectifier()

RELU = Rectifier(slope=0.0)
