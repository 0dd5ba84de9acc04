"""What every source of batches is, and where in its records it begins.

A source is made anew for a position and goes on from there; it is closed when another position is
wanted. It runs ahead of the net, so how far the *net* has come is not asked of the source: it is
written in each batch, and a snapshot takes it from the batch in use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from demitasse.backends.pixels import Pixels
from demitasse.io.data.broken import Broken
from demitasse.io.data.transform.transformer import Centring

__all__ = ["ALONE", "Batch", "BatchSource", "Reading", "Shape", "Shard"]

Shape = tuple[int, ...]

HostMemory = Callable[[int, str], np.ndarray]
"""``empty_host`` of a backend: one-dimensional host memory by size and dtype."""


@dataclass(frozen=True)
class Shard:
    """The share of one rank in the records: of ``ranks`` in a row, that at position ``rank``.

    Attributes:
        rank: From 0.
        ranks: How many there are.
    """

    rank: int = 0
    ranks: int = 1

    def numbers(self, position: int, count: int) -> range:
        """Return the numbers of this rank's next records after all ranks have used ``position``."""
        first = position + self.rank
        return range(first, first + count * self.ranks, self.ranks)


ALONE = Shard()
"""The share of one that reads every record."""


@dataclass(frozen=True)
class Reading:
    """Where a source begins, which share of the records it takes, and what it leaves out.

    Attributes:
        position: Records that all ranks together have used before.
        shard: The share of this rank.
        whole_epochs: Whether to begin with the first record, and to end a batch with the last one.
        broken: What becomes of records that cannot be used.
    """

    position: int = 0
    shard: Shard = ALONE
    whole_epochs: bool = False
    broken: Broken = field(default_factory=Broken)


class Batch:
    """Host memory for one batch, used again and again.

    Args:
        memory: Where memory comes from.
        dtype: Of all its arrays.
        takes_bytes: Whether images may come as bytes that are not centred yet.

    Attributes:
        arrays: What goes to each top.
        pixels: What goes to the first top, if these are bytes; its array then has them.
        position: Records consumed by all ranks up to and including this batch.
        skipped: Broken records that were skipped until then.
        last: Whether the last record of all is the last one of this batch, for sources that end a
            batch there.
        left_out: Whether it holds nothing, since another reader makes it (``Turns``).
    """

    def __init__(self, memory: HostMemory, dtype: str, *, takes_bytes: bool = False) -> None:
        self.arrays: list[np.ndarray] = []
        self.pixels: Pixels | None = None
        self.position = self.skipped = 0
        self.last = self.left_out = False
        self._memory, self._dtype = memory, dtype
        self._flat: list[np.ndarray] = []
        self._takes_bytes = takes_bytes
        self._bytes, self._places = np.empty(0, np.uint8), np.empty(0, np.int32)

    def images(
        self, shape: Shape, records: Iterable[np.ndarray], centring: Centring
    ) -> np.ndarray | Pixels:
        """Return what is for the first top, to be overwritten completely.

        Args:
            shape: (N, C, h, w).
            records: What it is made of; where all are bytes, and bytes are taken, it holds bytes.
            centring: What is done with bytes later.
        """
        self.pixels = None
        if not self._takes_bytes or any(record.dtype != np.uint8 for record in records):
            return self.array(0, shape)
        self._have(0)
        size, count = math.prod(shape), 3 * shape[0]
        if self._bytes.size < size or self._places.size < count:
            self._bytes = self._memory(size, "uint8")
            self._places = self._memory(count, "int32")
        self.arrays[0] = self._bytes[:size].reshape(shape)
        places = self._places[:count].reshape(-1, 3)
        self.pixels = Pixels(self.arrays[0], places, centring.mean, centring.scale)
        return self.pixels

    def array(self, index: int, shape: Shape) -> np.ndarray:
        """Return the array for top ``index``, to be overwritten completely."""
        size = math.prod(shape)
        self._have(index)
        if self._flat[index].size < size:
            self._flat[index] = self._memory(size, self._dtype)
        self.arrays[index] = self._flat[index][:size].reshape(shape)
        return self.arrays[index]

    def _have(self, index: int) -> None:
        while len(self.arrays) <= index:
            self._flat.append(self._memory(0, self._dtype))
            self.arrays.append(self._flat[-1])


class BatchSource(Protocol):
    """What makes batches of records, one after the other and without end.

    The thread that fills batches is the only one that uses it.
    """

    @property
    def position(self) -> int:
        """Records that all ranks have used before the next batch."""

    def shapes(self) -> list[Shape]:
        """Return the shapes of the next batch, one for each top; nothing moves on.

        Raises:
            DataError: The record they are taken from cannot be used.
        """

    def fill(self, batch: Batch) -> None:
        """Make the next batch, and note in it how many records have been used.

        Args:
            batch: Its ``array``s are overwritten, in the dtype it has; ``position``, ``skipped``
                and ``last`` are set.

        Raises:
            DataError: A record cannot be used; names it.
        """

    def leave_out(self, batch: Batch) -> None:
        """Go on as ``fill`` does, without reading the records where that can be helped.

        Args:
            batch: Its ``position``, ``skipped`` and ``last`` are set.
        """

    def close(self) -> None:
        """Let go of files and threads."""
