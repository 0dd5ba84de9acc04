"""Batches that several readers make in turn; each reader skips the batches of the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from demitasse.io.data.sources.source import Batch, BatchSource

__all__ = ["EVERY", "Turn", "Turns"]


@dataclass(frozen=True)
class Turn:
    """Batches of one reader: of each ``readers`` consecutive batches, the one at index ``reader``.

    The owner of a batch depends only on the number of records before, so all readers agree.

    Attributes:
        reader: Index of the reader, from 0.
        readers: Number of readers.
    """

    reader: int = 0
    readers: int = 1

    def has(self, position: int, batch_size: int) -> bool:
        """Return True if this reader makes the batch after so many records."""
        return position // batch_size % self.readers == self.reader


EVERY = Turn()
"""Shard of a reader that makes all batches."""


class Turns:
    """Skips the batches of other readers.

    Args:
        source: Source of batches.
        turn: Batches of this reader.
        batch_size: Records per batch.
    """

    def __init__(self, source: BatchSource, turn: Turn, batch_size: int) -> None:
        self._source, self._turn, self._batch_size = source, turn, batch_size

    def others(self) -> Iterator[Batch]:
        """Advance the source to the next batch of this reader.

        Yields:
            An empty batch, with its position, for each skipped batch.
        """
        while not self._turn.has(self._source.position, self._batch_size):
            batch = Batch(np.empty, "float32")
            batch.left_out = True
            self._source.leave_out(batch)
            yield batch
