"""Epilogues of convolutions and products: ReLU, PReLU, Clip, or nothing."""

from __future__ import annotations

from collections.abc import Callable

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Vector,
    Word,
    clamp_max,
    clamp_min,
    rectified,
)


def rectifying(
    k: Kernel, numbers: Word, place: Word | int | None, *, limited: bool
) -> Callable[[Vector], Vector]:
    """Return a function that writes the epilogue of the sums of some channels.

    Args:
        k: The kernel, which reads the numbers here.
        numbers: Address of what :meth:`Rectifier.numbers` returns.
        place: Bytes from the first channel's slope to these channels' slopes; None for one slope of
            all channels.
        limited: True for limits in place of slopes.
    """
    if limited:
        low, high = (k.broadcast(numbers + FLOAT * i) for i in range(2))
        return lambda total: clamp_min(clamp_max(total, high), low)  # in this order as in Clip
    slope = k.broadcast(numbers) if place is None else k.load(numbers + place)
    return lambda total: rectified(total, slope)
