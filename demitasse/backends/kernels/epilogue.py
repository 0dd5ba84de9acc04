"""Epilogues of convolutions and products: ReLU, PReLU, Clip, or nothing."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Vector,
    Word,
    clamp_max,
    clamp_min,
    rectified,
)


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
        return self.limits is not None

    @property
    def relu(self) -> bool:
        """True if negative sums become 0."""
        return self.limits is None and self.slope == 0

    def numbers(self, channels: int = 1) -> np.ndarray:
        """Return the kernel's data: a slope for each channel, or both limits."""
        numbers = aligned(channels if self.limits is None else len(self.limits))
        numbers[...] = self.slope if self.limits is None else self.limits
        return numbers


NOTHING, RELU = Rectifier(), Rectifier(slope=0.0)


def rectifying(
    k: Kernel, numbers: Word, place: Word | int | None, *, limited: bool, relu: bool = False
) -> Callable[[Vector], Vector]:
    """Return a function that writes the epilogue of the sums of some channels.

    The kernel reads the ``numbers`` of a :class:`Rectifier` here: limits, or slopes ``place`` bytes
    behind the first channel's; None for one slope of all channels. ReLU that is known to be one
    takes two thirds of the operations, with the same results.
    """
    if relu:
        zero = k.broadcast(numbers)  # from memory: LLVM subtracts a constant in three operations
        return lambda total: total - clamp_max(total, zero)
    if limited:
        low, high = (k.broadcast(numbers + FLOAT * i) for i in range(2))
        return lambda total: clamp_min(clamp_max(total, high), low)  # in this order as in Clip
    slope = k.broadcast(numbers) if place is None else k.load(numbers + place)
    return lambda total: rectified(total, slope)
