"""OpenCV's Scalar, up to four numbers, one for each channel, and its Size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.compat.cvdnn.errors import error

__all__ = ["Scalar", "ScalarLike", "as_scalar", "as_size"]

Scalar = tuple[float, float, float, float]
ScalarLike = float | Sequence[float]


def as_scalar(values: ScalarLike, what: str) -> Scalar:
    """Return four numbers; those that are not given are 0, also after a single number.

    Args:
        values: A number or up to four.
        what: What messages call them.

    Raises:
        error: There are more than four.
    """
    given = tuple(float(value) for value in np.ravel(values))
    if len(given) > 4:
        message = f"{what} has at most four numbers, one for each channel, given are {len(given)}"
        raise error(message)
    first, second, third, fourth = (*given, 0.0, 0.0, 0.0, 0.0)[:4]
    return first, second, third, fourth


def as_size(size: int | Sequence[int | Sequence[int]]) -> tuple[int, int]:
    """Return width and height.

    Raises:
        error: They are not two numbers.
    """
    numbers = [int(number) for number in np.ravel(size)]
    if len(numbers) != 2:
        message = f"size must be (width, height), it is {size!r}"
        raise error(message)
    return numbers[0], numbers[1]
