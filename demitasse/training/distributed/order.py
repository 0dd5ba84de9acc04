"""Sums in a fixed order, whoever adds them."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse.backends.arrays import Array

__all__ = ["add_up"]


def add_up(parts: Sequence[Array]) -> None:
    """Replace the first array by the sum of all, added as a tree; the others change, too.

    The far half is added to the near half until one is left: of eight, 4 to 0, 5 to 1, 6 to 2 and 7
    to 3, then 2 to 0 and 3 to 1, then 1 to 0.

    Args:
        parts: Arrays of one shape, by their number.
    """
    count = len(parts)
    while count > 1:
        half = (count + 1) // 2
        for near, far in zip(parts, parts[half:count], strict=False):
            near += far  # noqa: PLW2901 - in place
        count = half
