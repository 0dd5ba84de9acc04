"""Interface of batch sources; shards, start positions and batches.

A source starts at a given position; another position needs a new source. It runs ahead of the net.
Therefore each batch stores the position behind its records, and a snapshot reads the position of
the batch in use.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from demitasse.backends.pixels import ImageBatch
from demitasse.core.deprecated import deprecated_attribute, deprecated_names, renamed_arguments
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.data.bad_records import BadRecordPolicy
from demitasse.io.data.transform.transformer import MeanScale

Shape = tuple[int, ...]

HostMemory = Callable[[int, str], np.ndarray]
"""``empty_host`` of a backend: returns one-dimensional host memory of a size and dtype."""


@dataclass(frozen=True)
class Shard:
    """Records, or batches, of one process: of each ``world_size``, the one at index ``rank``.

    Another rank than 0 to ``world_size - 1`` raises a ConfigError.
    """

    rank: int = 0
    world_size: int = 1
    ranks = deprecated_attribute("Shard", "ranks", "world_size")

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            message = (
                f"got rank {self.rank} of world_size {self.world_size}, expected a rank from 0 to "
                "world_size - 1"
            )
            raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="rank", got=self.rank)

    def numbers(self, position: int, count: int) -> range:
        """Return the numbers of the next records, after all processes have used ``position``."""
        first = position + self.rank
        return range(first, first + count * self.world_size, self.world_size)

    def has_batch(self, position: int, batch_size: int) -> bool:
        """Return True if this process makes the batch after so many records."""
        return position // batch_size % self.world_size == self.rank


Shard.__init__ = renamed_arguments(ranks="world_size")(  # type: ignore[method-assign]
    Shard.__init__
)

UNSHARDED = Shard()  # shard of a single process: everything


@dataclass(frozen=True)
class ReaderConfig:
    """Start position, shard and policy for bad records of a source.

    Attributes:
        position: Records used by all processes before.
        whole_epochs: Start at the first record, and end a batch at the last record.
    """

    position: int = 0
    shard: Shard = UNSHARDED
    whole_epochs: bool = False
    bad_records: BadRecordPolicy = field(default_factory=BadRecordPolicy)
    broken = deprecated_attribute("ReaderConfig", "broken", "bad_records")


ReaderConfig.__init__ = renamed_arguments(broken="bad_records")(  # type: ignore[method-assign]
    ReaderConfig.__init__
)


class Batch:
    """Host memory of one batch, reused.

    With ``takes_bytes``, images may be bytes; a device subtracts the mean later.

    Attributes:
        arrays: Arrays of the tops.
        pixels: Bytes for the first top, or None; also in its array.
        position: Records used by all processes, this batch included.
        skipped: Bad records skipped so far.
        last: True if the batch ends with the last record, for sources with whole epochs.
        is_skipped: True if the batch is empty, as another rank makes it (``skip_other_ranks``).
    """

    def __init__(self, memory: HostMemory, dtype: str, *, takes_bytes: bool = False) -> None:
        self.arrays: list[np.ndarray] = []
        self.pixels: ImageBatch | None = None
        self.position = self.skipped = 0
        self.last = self.is_skipped = False
        self._memory, self._dtype = memory, dtype
        self._flat: list[np.ndarray] = []
        self._takes_bytes = takes_bytes
        self._bytes, self._places = np.empty(0, np.uint8), np.empty(0, np.int32)

    def images(
        self, shape: Shape, records: Iterable[np.ndarray], mean_scale: MeanScale
    ) -> np.ndarray | ImageBatch:
        """Return memory for the first top, of shape (N, C, h, w), to be overwritten completely.

        If the batch takes bytes, and all records are bytes, the memory is an ``ImageBatch``: mean
        and scale are applied later.
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
        self.pixels = ImageBatch(self.arrays[0], places, mean_scale.mean, mean_scale.scale)
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
    """Endless source of batches; used by one thread."""

    @property
    def position(self) -> int:
        """Records used by all processes before the next batch."""

    def shapes(self) -> list[Shape]:
        """Return the shapes of the next batch, one per top, without advancing.

        A bad first record is a DataError.
        """

    def fill(self, batch: Batch) -> None:
        """Overwrite the arrays of the next batch, and set ``position``, ``skipped`` and ``last``.

        A record that cannot be used is a DataError, which names the record.
        """

    def skip(self, batch: Batch) -> None:
        """Advance like ``fill``, without reading records if possible; arrays stay as they are."""

    def close(self) -> None:
        """Close files and stop threads."""


def skip_other_ranks(source: BatchSource, shard: Shard, batch_size: int) -> Iterator[Batch]:
    """Advance to the next batch of this rank; yield an empty batch for each skipped batch."""
    while not shard.has_batch(source.position, batch_size):
        batch = Batch(np.empty, "float32")
        batch.is_skipped = True
        source.skip(batch)
        yield batch


__getattr__ = deprecated_names(__name__, {"ALONE": "UNSHARDED", "Reading": "ReaderConfig"})
