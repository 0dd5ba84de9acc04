"""What processes that train together need of the library that connects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

__all__ = ["Communicator", "Value"]

Value = TypeVar("Value")


class Communicator(Protocol):
    """A group of processes, numbered from 0, which all call the same methods in the same order.

    Every method may raise ParallelError: another process is lost, or too late.

    Attributes:
        rank: The number of this process.
        size: How many there are.
        name: The library, for messages.
    """

    rank: int
    size: int
    name: str

    def agree(self, note: bytes, patience: float = 1.0) -> list[bytes]:
        """Return everybody's note, by rank, once all have come here.

        Args:
            note: At most 256 bytes.
            patience: How many times the usual time others may take.
        """

    def share(self, value: Value, patience: float = 1.0) -> Value:
        """Return what process 0 gives, which is made of plain Python values and arrays."""

    def broadcast(self, array: np.ndarray) -> None:
        """Overwrite an array with that of process 0. Shapes: one-dimensional, contiguous."""

    def exchange(self, parts: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
        """Give each process its part; return what each has for us.

        Args:
            parts: One-dimensional arrays by the rank of who gets them.
            sizes: The sizes of those we get, by the rank of who gives them.
        """

    def collect(self, part: np.ndarray, whole: np.ndarray, bounds: Sequence[int]) -> None:
        """Put everybody's part into ``whole``: rank r's from ``bounds[r]`` to ``bounds[r + 1]``."""

    def add(self, array: np.ndarray) -> None:
        """Replace an array by the sum of everybody's, added in whatever order is fastest."""

    def abort(self, code: int) -> None:
        """End all processes at once, this one too, where that can be done."""
