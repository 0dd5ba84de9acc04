"""Batches of which several readers make one each in turn, and leave out the others'."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from demitasse.io.data.sources.source import Batch, BatchSource

__all__ = ["EVERY", "Turn", "Turns"]


@dataclass(frozen=True)
class Turn:
    """Which batches are a reader's: of ``readers`` in a row, that at position ``reader``.

    Whose a batch is depends on how many records come before it alone, so that all agree.

    Attributes:
        reader: From 0.
        readers: How many there are.
    """

    reader: int = 0
    readers: int = 1

    def has(self, position: int, batch_size: int) -> bool:
        """Whether the batch after so many records is this reader's."""
        return position // batch_size % self.readers == self.reader


EVERY = Turn()
"""The turn of a reader that makes all batches."""


class Turns:
    """Leaves out the batches of others.

    Args:
        source: What makes batches.
        turn: Whose batches it is to make.
        batch_size: Records in a batch.
    """

    def __init__(self, source: BatchSource, turn: Turn, batch_size: int) -> None:
        self._source, self._turn, self._batch_size = source, turn, batch_size

    def others(self) -> Iterator[Batch]:
        """Bring the source to the next batch that is to be made.

        Yields:
            For each batch on the way one that holds nothing, and tells where it ends.
        """
        while not self._turn.has(self._source.position, self._batch_size):
            batch = Batch(np.empty, "float32")
            batch.left_out = True
            self._source.leave_out(batch)
            yield batch
