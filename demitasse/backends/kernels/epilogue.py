"""Epilogues of convolutions and products: ReLU, PReLU, Clip, Swish, HardSwish, or nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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
from demitasse.backends.kernels.math_functions import hard_swish, sigmoid, tanh

Curve = Literal["", "swish", "hard_swish", "sigmoid", "tanh"]
"""Functions of the sums; "" for none."""

Kind = Literal["relu", "limits"] | Curve
"""Kinds of code: slopes that are 0, limits, curves, and slopes, which are ""."""

CURVES: dict[Kind, Callable[[Vector], Vector]] = {
    "swish": lambda total: total * sigmoid(total),
    "hard_swish": hard_swish,
    "sigmoid": sigmoid,
    "tanh": tanh,
}


@dataclass(frozen=True)
class Rectifier:
    """Epilogue: a slope for negative sums, limits, or a curve. NaN stays NaN.

    A kernel reads slopes as data; limits and curves need other code.

    Attributes:
        slope: Factor of negative sums: 0 for ReLU, which turns minus infinity into NaN as Caffe's
            does; 1 for no epilogue.
        limits: Least and largest result, also for infinities; None for none.
        curve: Function of the sums; "" for none. Images with zeros behind few channels need one
            whose result for 0 is 0.
    """

    slope: float = 1.0
    limits: tuple[float, float] | None = None
    curve: Curve = ""

    @property
    def kind(self) -> Kind:
        """Kind of the code that a kernel needs."""
        if self.limits is not None:
            return "limits"
        return self.curve or ("relu" if self.slope == 0 else "")

    def numbers(self, channels: int = 1) -> np.ndarray:
        """Return the kernel's data: a slope for each channel, or both limits."""
        numbers = aligned(channels if self.limits is None else len(self.limits))
        numbers[...] = self.slope if self.limits is None else self.limits
        return numbers


NOTHING, RELU = Rectifier(), Rectifier(slope=0.0)


def rectifying(
    k: Kernel, numbers: Word, place: Word | int | None, kind: Kind
) -> Callable[[Vector], Vector]:
    """Return a function that writes the epilogue of the sums of some channels.

    The kernel reads the ``numbers`` of a :class:`Rectifier` here: limits, or slopes ``place`` bytes
    behind the first channel's; None for one slope of all channels. ReLU that is known to be one
    takes two thirds of the operations, with the same results.
    """
    if kind in CURVES:
        return CURVES[kind]
    if kind == "relu":
        zero = k.broadcast(numbers)  # from memory: LLVM subtracts a constant in three operations
        return lambda total: total - clamp_max(total, zero)
    if kind == "limits":
        low, high = (k.broadcast(numbers + FLOAT * i) for i in range(2))
        return lambda total: clamp_min(clamp_max(total, high), low)  # in this order as in Clip
    slope = k.broadcast(numbers) if place is None else k.load(numbers + place)
    return lambda total: rectified(total, slope)
