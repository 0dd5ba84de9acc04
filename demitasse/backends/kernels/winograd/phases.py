"""The phases of an image: what windows of twice two taps and stride 2 are tiles of.

A pixel's phase is whether its row and its column are even or odd. Windows of 4 x 4 taps that are
two pixels apart are windows of 2 x 2 taps that are one pixel apart, of an image that has the four
phases as channels; and so are those of 6 x 6 of 3 x 3. The gradient of the image is one convolution
for each phase.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

__all__ = ["STEP", "Phase", "phases_of"]

STEP = 2
"""Rows and columns from one pixel of a phase to the next."""


class Phase(NamedTuple):
    """Pixels of images, which are images themselves.

    Attributes:
        first: Row and column of the first pixel.
        pad: Zeros above and on the left.
        step: Rows and columns from one pixel to the next.
    """

    first: tuple[int, int] = (0, 0)
    pad: tuple[int, int] = (0, 0)
    step: int = 1

    def size(self, whole: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of a phase of images of so many."""
        high, wide = (
            -(-(count - first) // self.step) for count, first in zip(whole, self.first, strict=True)
        )
        return high, wide


def phases_of(pad: tuple[int, int]) -> list[Phase]:
    """Return the four phases of an image, as the taps of a window meet them.

    Args:
        pad: Zeros above and on the left of the image.
    """
    found = []
    for taps in product(range(STEP), repeat=2):
        firsts = [(tap - zeros) % STEP for tap, zeros in zip(taps, pad, strict=True)]
        pads = [
            (zeros - tap + first) // STEP
            for tap, zeros, first in zip(taps, pad, firsts, strict=True)
        ]
        found.append(Phase((firsts[0], firsts[1]), (pads[0], pads[1]), STEP))
    return found
