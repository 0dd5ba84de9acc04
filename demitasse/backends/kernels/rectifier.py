"""Descriptions of epilogues: ReLU, PReLU, Clip, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demitasse.backends.arrays import aligned


@dataclass(frozen=True)
class Rectifier:
    """Epilogue: a slope for negative sums, or limits. NaN stays NaN.

    A kernel reads slopes as data; limits need other code.

    Attributes:
        slope: Factor of negative sums: 0 for ReLU, which turns minus infinity into NaN as Caffe's
            does; 1 for no epilogue.
        limits: Least and largest result, also for infinities; None for none.
    """

    slope: float = 1.0
    limits: tuple[float, float] | None = None

    @property
    def limited(self) -> bool:
        """True if there are limits."""
        return self.limits is not None

    def numbers(self, channels: int = 1) -> np.ndarray:
        """Return the kernel's data: a slope for each channel, or both limits."""
        numbers = aligned(channels if self.limits is None else len(self.limits))
        numbers[...] = self.slope if self.limits is None else self.limits
        return numbers


NOTHING = Rectifier()


RELU = Rectifier(slope=0.0)
