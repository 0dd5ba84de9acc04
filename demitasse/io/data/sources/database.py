"""Batches of database records, for one process or several.

Source: Caffe, ``src/caffe/layers/data_layer.cpp`` (``load_batch``, ``Next``, ``Skip``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from demitasse.errors import DataError, DemitasseError
from demitasse.io.data.broken import RecordError, located, nothing_left
from demitasse.io.data.databases.database import Raw, open_db
from demitasse.io.data.sources.reader import RecordReader
from demitasse.io.data.sources.source import Batch, Reading, Shape

__all__ = ["DatabaseBatches", "Maker"]


class Maker(Protocol):
    """Converts database records to batches, in the prefetching thread."""

    def look(self, raw: Raw, number: int, count: int) -> list[Shape]:
        """Return the shapes of a batch of ``count`` records like this record.

        Args:
            raw: The record.
            number: Record number, for random numbers.
            count: Number of records in the batch.

        Raises:
            DemitasseError: The record is bad.
        """

    def make(
        self, batch: Batch, records: list[Raw], first: int, step: int, places: Sequence[int]
    ) -> None:
        """Fill a batch.

        Args:
            batch: Its arrays are overwritten.
            records: The records.
            first: Record number at index 0.
            step: Difference of record numbers of neighbouring indices.
            places: Index of each record.

        Raises:
            RecordError: A record is bad; has its index.
        """

    def close(self) -> None:
        """Stop the threads."""


class Loaded(NamedTuple):
    """A good record: its number and its bytes."""

    number: int
    raw: Raw


class DatabaseBatches:
    """Fills batches with the records of a database, in order, in an endless loop.

    Args:
        path: The database.
        backend: ``"LMDB"`` or ``"LEVELDB"``.
        maker: Converts records to batches.
        batch_size: Records per batch.
        reading: Start position, shard and policy for bad records.

    Raises:
        DataError: The database cannot be opened, or is empty.
    """

    def __init__(
        self,
        path: Path,
        backend: str,
        maker: Maker,
        batch_size: int,
        *,
        reading: Reading | None = None,
    ) -> None:
        reading = reading or Reading()
        self._source, self._maker, self._batch_size = str(path), maker, batch_size
        self._position, self._step = reading.position, reading.shard.ranks
        self._whole_epochs, self._broken = reading.whole_epochs, reading.broken
        self._database = open_db(path, backend)
        self._reader = RecordReader(self._database, reading.position, reading.shard)
        if self._whole_epochs:
            self._position -= self._reader.begin_round()

    @property
    def position(self) -> int:
        """Records used before the next batch."""
        return self._position

    def shapes(self) -> list[Shape]:
        """Return the shapes of a batch, one per top."""
        slot = self._reader.number
        own = self._reader.record(slot)
        first = self._broken.find_one(
            lambda one: self._load(*one, slot), self._round_from(slot, own)
        )
        return self._maker.look(first.raw, slot, self._batch_size)

    def fill(self, batch: Batch) -> None:
        """Make the next batch.

        Raises:
            DataError: A record cannot be read or transformed; names the record.
        """
        made = False
        while not made:  # all records of a batch may be bad
            first = self._reader.number
            records = self._reader.take(self._batch_size, to_end=self._whole_epochs)
            self._position += len(records) * self._step
            slots = range(first, first + len(records) * self._step, self._step)
            made = self._fill(batch, records, slots)
        self._note(batch)

    def leave_out(self, batch: Batch) -> None:
        """Skip the next batch."""
        count = self._reader.skip(self._batch_size, to_end=self._whole_epochs)
        self._position += count * self._step
        self._note(batch)

    def key_of(self, number: int) -> str:
        """Return the key of a record, numbered over all epochs, for messages."""
        return self._reader.key_of(number)

    def close(self) -> None:
        """Close the database and stop the threads."""
        self._maker.close()
        self._reader.close()
        self._database.close()

    def _note(self, batch: Batch) -> None:
        """Write the position behind the batch into the batch."""
        batch.position, batch.last = self._position, self._whole_epochs and self._reader.at_start
        batch.skipped = self._broken.count

    def _fill(self, batch: Batch, records: list[Raw], slots: range) -> bool:
        """Make a batch of records, or of their replacements; return False if none is good."""
        try:
            self._maker.make(batch, records, slots.start, self._step, range(len(slots)))
            return True
        except RecordError as error:
            if not (error.broken and self._broken.skip):
                raise self._placed(error, slots[error.index]) from error
        except DemitasseError as error:
            raise self._placed(error, slots.start) from error
        good = self._without_broken(records, slots)
        if good:
            try:
                raws = [one.raw for one in good.values()]
                self._maker.make(batch, raws, slots.start, self._step, list(good))
            except RecordError as error:
                number = list(good.values())[error.index].number
                raise self._placed(error, number) from error
        return bool(good)

    def _without_broken(self, records: list[Raw], slots: range) -> dict[int, Loaded]:
        """Return the good records of a batch by index, and count the bad ones."""
        good: dict[int, Loaded] = {}
        for place, (slot, raw) in enumerate(zip(slots, records, strict=True)):
            one, fault = self._find(slot, raw)
            if fault is not None:
                self._broken.note(fault, slot // (self._reader.size or slot + 1))
            if one is not None:
                good[place] = one
            elif fault is not None and not self._whole_epochs:
                raise fault
        if not good and self._reader.at_start:
            raise nothing_left(self._source)
        return good

    def _find(self, slot: int, own: Raw) -> tuple[Loaded | None, DataError | None]:
        """Return the record for a slot, and the error of the slot's own record if that is bad."""
        candidates = self._round_from(slot, own)
        if self._whole_epochs:
            candidates = islice(candidates, 1)
        return self._broken.find(lambda one: self._load(*one, slot), candidates)

    def _round_from(self, slot: int, own: Raw) -> Iterator[tuple[int, Raw]]:
        """Yield (number, value) of all records of the database, beginning with ``slot``."""
        yield slot, own
        number = slot + 1
        while self._reader.size is None or number - slot < self._reader.size:
            yield number, self._reader.record(number)
            number += 1

    def _load(self, number: int, raw: Raw, slot: int) -> Loaded:
        """Return a record, checked with the random numbers of a slot.

        Raises:
            DataError: The record is bad; names the record.
        """
        try:
            self._maker.look(raw, slot, 1)
        except DemitasseError as error:
            raise self._placed(error, number) from error
        return Loaded(number, raw)

    def _placed(self, error: DemitasseError, number: int) -> DataError:
        """Return the error with the names of the database and the record."""
        return located(error, self._source, self.key_of(number))
