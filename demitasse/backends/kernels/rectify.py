"""A kernel's instructions for a :class:`Rectifier`."""

from __future__ import annotations

from collections.abc import Callable

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Vector,
    Word,
    lowered,
    raised,
    rectified,
)

__all__ = ["rectifying"]


def rectifying(
    k: Kernel, numbers: Word, place: Word | int | None, *, limited: bool
) -> Callable[[Vector], Vector]:
    """Return what writes for sums of some channels what becomes of them.

    Args:
        k: The kernel, which reads the numbers here.
        numbers: Address of what :meth:`Rectifier.numbers` returns.
        place: Bytes from the first channel's slope to those of these channels; None where one slope
            is for all.
        limited: Whether there are limits in place of slopes.
    """
    if limited:
        low, high = (k.broadcast(numbers + FLOAT * i) for i in range(2))
        return lambda total: raised(lowered(total, high), low)  # in this order as in Clip
    slope = k.broadcast(numbers) if place is None else k.load(numbers + place)
    return lambda total: rectified(total, slope)
