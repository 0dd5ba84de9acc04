"""Sampling from lists: the order of items per epoch, and the items of a process.

The order of an epoch depends on a seed, a name and the number of the epoch only. So a resumed run
and every process compute the same order. Items are numbered consecutively over all epochs; see
``BadRecordPolicy`` for bad items.
"""

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

import numpy as np

from demitasse.backends.random import bits, stream_of
from demitasse.errors import DataError
from demitasse.io.data.bad_records import nothing_left
from demitasse.io.data.sources.source import Batch, ReaderConfig
from demitasse.io.data.threads import Threads


class EpochPermutation:
    """Permutation of ``size`` items per epoch; without ``shuffle``, the items in their order."""

    def __init__(self, size: int, seed: int, name: str, *, shuffle: bool) -> None:
        self.size, self.shuffle = size, shuffle
        self._seed, self._stream = seed, stream_of(f"{name}/order")
        self._lock = Lock()  # several threads read images
        self._rounds: dict[int, np.ndarray] = {}

    def __getitem__(self, number: int) -> int:
        """Return the item at position ``number``, counted from 0 over all epochs."""
        round_, place = divmod(number, self.size)
        return int(self.of_round(round_)[place]) if self.shuffle else place

    def of_round(self, round_: int) -> np.ndarray:
        """Return the items of one epoch in order. Shape: (size,)."""
        if not self.shuffle:
            return np.arange(self.size)
        with self._lock:
            if round_ not in self._rounds:
                if len(self._rounds) > 1:  # a batch may span two epochs
                    del self._rounds[min(self._rounds)]
                keys = bits(self._seed, self._stream, round_, self.size)
                self._rounds[round_] = np.argsort(keys, kind="stable")
            return self._rounds[round_]


Item = TypeVar("Item")


class ListSampler(Generic[Item]):
    """Takes the items of a list batch by batch, in an endless loop, for one process of several.

    ``position`` is the number of items used before the next batch. ``read`` loads item ``index``
    with the random numbers of position ``slot``, in several threads, and raises DataError for a bad
    item.
    """

    def __init__(
        self, source: str, size: int, read: Callable[[int, int], Item], batch_size: int,
        config: ReaderConfig,
    ) -> None:  # fmt: skip
        self._source, self._size, self._read, self._batch_size = source, size, read, batch_size
        self.position, self._shard = config.position, config.shard
        self._whole_epochs, self._policy = config.whole_epochs, config.bad_records
        self._threads = Threads("read images")
        if self._whole_epochs:
            self.position -= self.position % size

    def first(self) -> Item:
        """Return the next item, without advancing."""
        (slot,) = self._shard.numbers(self.position, 1)
        return self._policy.find_one(
            lambda index: self._read(index, slot), range(slot, slot + self._size)
        )

    def take(self, batch: Batch) -> list[Item]:
        """Return the items of the next batch, at least one, and set the batch's position."""
        items: list[Item] = []
        while not items:  # all items of a batch may be bad
            slots = self._shard.numbers(self.position, self._next_size())
            found = self._threads.map(self._find_item, slots)
            for slot, (item, fault) in zip(slots, found, strict=True):
                if fault is not None:
                    self._policy.note(fault, slot // self._size)
                if item is not None:
                    items.append(item)
                elif fault is not None and not self._whole_epochs:
                    raise fault
            self._finish_batch(len(slots), batch)
            if batch.last and not items:
                raise nothing_left(self._source)
        return items

    def skip(self, batch: Batch) -> None:
        """Skip the next batch, and set the batch's position."""
        self._finish_batch(self._next_size(), batch)

    def close(self) -> None:
        self._threads.close()

    def _next_size(self) -> int:
        """Return the number of items of the next batch."""
        if self._whole_epochs:
            return min(self._batch_size, self._size - self.position % self._size)
        return self._batch_size

    def _finish_batch(self, count: int, batch: Batch) -> None:
        self.position += count * self._shard.world_size
        batch.position, batch.skipped = self.position, self._policy.count
        batch.last = self._whole_epochs and self.position % self._size == 0

    def _find_item(self, slot: int) -> tuple[Item | None, DataError | None]:
        """Return the item for a slot, and the error of the slot's own item if that is bad."""
        candidates = range(slot, slot + (1 if self._whole_epochs else self._size))
        return self._policy.find(lambda index: self._read(index, slot), candidates)
