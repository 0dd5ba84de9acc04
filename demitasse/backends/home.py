"""Slice of a Concat's top where a bottom may write, so that nothing is copied."""

from __future__ import annotations

import math

from demitasse.core.frozen_struct import FrozenStruct

__all__ = ["Home"]


class Home(FrozenStruct):
    """A range of the channels of some images that lie with their channels last.

    Attributes:
        shape: The shape of what lies there, (N, C, *spatial).
        whole: The shape of all of it: the same but for C.
        first: The first of the channels.
    """

    shape: tuple[int, ...]
    whole: tuple[int, ...]
    first: int

    @property
    def is_whole(self) -> bool:
        """True if it is all channels."""
        return self.shape == self.whole

    @property
    def size(self) -> int:
        """Elements from the first to the last, those of other channels in between included."""
        return math.prod(self.whole) - self.whole[1] + self.shape[1]

    def part(self, shape: tuple[int, ...], first: int) -> Home:
        """Return the home of some of these channels.

        Args:
            shape: Their shape.
            first: The first of them, counted from our first.
        """
        return Home(shape, self.whole, self.first + first)
