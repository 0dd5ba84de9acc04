"""ListWalk: the items of a list in an endless loop, as one of several ranks takes them.

Items are numbered consecutively through all rounds; see ``Broken`` for what becomes of broken ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from demitasse.errors import DataError
from demitasse.io.data.broken import nothing_left
from demitasse.io.data.sources.source import Batch, Reading
from demitasse.io.data.threads import Threads

__all__ = ["ListWalk"]

Item = TypeVar("Item")


class ListWalk(Generic[Item]):
    """Takes the items of a batch at a time.

    Args:
        source: The list, for messages.
        size: Items in it.
        read: Load item ``index`` for position ``slot``; randomness comes from ``slot``. Raises
            DataError for a broken one. Several threads call it at once.
        batch_size: Items in a batch.
        reading: Where to begin, and which share to take.
    """

    def __init__(
        self,
        source: str,
        size: int,
        read: Callable[[int, int], Item],
        batch_size: int,
        reading: Reading,
    ) -> None:
        self._source, self._size, self._read, self._batch_size = source, size, read, batch_size
        self._position, self._shard = reading.position, reading.shard
        self._whole_epochs, self._broken = reading.whole_epochs, reading.broken
        self._threads = Threads("read images")
        if self._whole_epochs:
            self._position -= self._position % size

    @property
    def position(self) -> int:
        """Items before the next batch."""
        return self._position

    def first(self) -> Item:
        """Return the first item there will be, without going on.

        Raises:
            DataError: It is broken, or all of them are.
        """
        (slot,) = self._shard.numbers(self._position, 1)
        return self._broken.find_one(
            lambda index: self._read(index, slot), range(slot, slot + self._size)
        )

    def take(self, batch: Batch) -> list[Item]:
        """Return the items of the next batch, at least one, and tell the batch where that is.

        Raises:
            DataError: One is broken; or where they are skipped, all in the list or all in the last
                batch of a round are.
        """
        items: list[Item] = []
        while not items:  # all of a batch may be broken
            slots = self._shard.numbers(self._position, self._next_size())
            found = self._threads.map(self._find, slots)
            for slot, (item, fault) in zip(slots, found, strict=True):
                if fault is not None:
                    self._broken.note(fault, slot // self._size)
                if item is not None:
                    items.append(item)
                elif fault is not None and not self._whole_epochs:
                    raise fault
            self._go_on(len(slots), batch)
            if batch.last and not items:
                raise nothing_left(self._source)
        return items

    def leave_out(self, batch: Batch) -> None:
        """Go on to the batch after the next one, and tell the batch where that is."""
        self._go_on(self._next_size(), batch)

    def close(self) -> None:
        """Let go of threads."""
        self._threads.close()

    def _next_size(self) -> int:
        """Return how many items the next batch is made of."""
        if self._whole_epochs:
            return min(self._batch_size, self._size - self._position % self._size)
        return self._batch_size

    def _go_on(self, count: int, batch: Batch) -> None:
        self._position += count * self._shard.ranks
        batch.position, batch.skipped = self._position, self._broken.count
        batch.last = self._whole_epochs and self._position % self._size == 0

    def _find(self, slot: int) -> tuple[Item | None, DataError | None]:
        """Return the item for a slot, and the error of its own item where that is broken."""
        candidates = range(slot, slot + (1 if self._whole_epochs else self._size))
        return self._broken.find(lambda index: self._read(index, slot), candidates)
