"""Sampling from lists: the order of items per epoch, and the items of a process.

Items are numbered consecutively over all epochs; see ``Broken`` for bad items.
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
    """Takes the items of a list batch by batch, in an endless loop, for one process of several.

    Args:
        source: The list, for messages.
        size: Number of items.
        read: Loads item ``index`` with the random numbers of position ``slot``; raises DataError
            for a bad item. Called from several threads.
        batch_size: Items per batch.
        reading: Start position, shard and policy for bad records.
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
        """Items used before the next batch."""
        return self._position

    def first(self) -> Item:
        """Return the next item, without advancing.

        Raises:
            DataError: The item is bad; with ``skip``, all items are bad.
        """
        (slot,) = self._shard.numbers(self._position, 1)
        return self._broken.find_one(
            lambda index: self._read(index, slot), range(slot, slot + self._size)
        )

    def take(self, batch: Batch) -> list[Item]:
        """Return the items of the next batch, at least one, and set the batch's position.

        Raises:
            DataError: An item is bad; with ``skip``, all items of the list, or all items of an
                epoch's last batch.
        """
        items: list[Item] = []
        while not items:  # all items of a batch may be bad
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
        """Skip the next batch, and set the batch's position."""
        self._go_on(self._next_size(), batch)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.close()

    def _next_size(self) -> int:
        """Return the number of items of the next batch."""
        if self._whole_epochs:
            return min(self._batch_size, self._size - self._position % self._size)
        return self._batch_size

    def _go_on(self, count: int, batch: Batch) -> None:
        self._position += count * self._shard.ranks
        batch.position, batch.skipped = self._position, self._broken.count
        batch.last = self._whole_epochs and self._position % self._size == 0

    def _find(self, slot: int) -> tuple[Item | None, DataError | None]:
        """Return the item for a slot, and the error of the slot's own item if that is bad."""
        candidates = range(slot, slot + (1 if self._whole_epochs else self._size))
        return self._broken.find(lambda index: self._read(index, slot), candidates)
