"""ListWalk: the items of a list, round and round, as one rank of several sees them.

Items are numbered on and on through all rounds. Where a broken one is skipped, the next good one
stands in for it; it comes again in its own place. So each place in a batch depends on its number
alone. In whole epochs, which count, the batch becomes smaller instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from demitasse.data.broken import Broken
from demitasse.data.prefetch import Batch
from demitasse.data.threads import Threads
from demitasse.errors import DataError

__all__ = ["ListWalk"]

Item = TypeVar("Item")


class ListWalk(Generic[Item]):
    """Takes the items of a batch at a time.

    Args:
        source: The list, for messages.
        size: Items in it.
        read: Returns the item of one number as it comes in the place of another one: what is
            random about it is random by the latter. Raises DataError for a broken one. Several
            threads call it at once.
        batch_size: Items in a batch.
        position: Items that all ranks together have used before.
        rank: Which of the ranks this is, from 0.
        ranks: How many there are.
        whole_epochs: Whether to begin with a round's first item, and to end a batch with its last.
        broken: What becomes of broken items; None refuses them.
    """

    def __init__(
        self,
        source: str,
        size: int,
        read: Callable[[int, int], Item],
        batch_size: int,
        *,
        position: int = 0,
        rank: int = 0,
        ranks: int = 1,
        whole_epochs: bool = False,
        broken: Broken | None = None,
    ) -> None:
        self._source, self._size, self._read, self._batch_size = source, size, read, batch_size
        self._position, self._rank, self._ranks = position, rank, ranks
        self._threads = Threads("read pictures")
        self._whole_epochs, self._broken = whole_epochs, broken or Broken()
        if whole_epochs:
            self._position -= position % size

    def first(self) -> Item:
        """Return the first item there will be, without going on.

        Raises:
            DataError: It is broken, or all of them are.
        """
        number = at = self._position + self._rank
        while True:
            try:
                return self._read(at, number)
            except DataError:
                at += 1
                if not self._broken.skip or at - number == self._size:
                    raise

    def take(self, batch: Batch) -> list[Item]:
        """Return the items of the next batch, at least one, and tell the batch where that is.

        Raises:
            DataError: One is broken; or where they are skipped, all in the list or all in the last
                batch of a round are.
        """
        items: list[Item] = []
        while not items:  # all of a batch may be broken
            size = self._batch_size
            if self._whole_epochs:
                size = min(size, self._size - self._position % self._size)
            first = self._position + self._rank
            numbers = range(first, first + size * self._ranks, self._ranks)
            found = self._threads.map(self._find, numbers)
            for number, (item, fault) in zip(numbers, found, strict=True):
                if fault is not None:
                    self._broken.note(fault, number // self._size)
                if item is not None:
                    items.append(item)
                elif fault is not None and not self._whole_epochs:
                    raise fault
            self._position += size * self._ranks
            batch.last = self._whole_epochs and self._position % self._size == 0
            if batch.last and not items:
                message = "nothing of the last batch can be used; change the batch size"
                raise DataError(message, self._source)
        batch.position, batch.skipped = self._position, self._broken.count
        return items

    def close(self) -> None:
        """Let go of threads."""
        self._threads.close()

    def _find(self, number: int) -> tuple[Item | None, DataError | None]:
        """Return what comes in the place of a number, and what is wrong with its own item."""
        fault = None
        for at in range(number, number + self._size):
            try:
                return self._read(at, number), fault
            except DataError as error:
                fault = fault or error
                if not self._broken.skip or self._whole_epochs:
                    break
        return None, fault
