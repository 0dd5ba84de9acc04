"""Batches of the records of a database.

Source: Caffe, ``src/caffe/layers/data_layer.cpp`` (``load_batch``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from demitasse.errors import DataError, DemitasseError
from demitasse.io.data.broken import RecordError, nothing_left
from demitasse.io.data.databases.database import Raw, open_db
from demitasse.io.data.sources.reader import RecordReader
from demitasse.io.data.sources.source import Batch, Reading, Shape

__all__ = ["DatabaseBatches", "Maker"]


class Maker(Protocol):
    """Turns records of a database into batches, in the thread that fills them."""

    def look(self, raw: Raw, number: int, count: int) -> list[Shape]:
        """Return the shapes of a batch of so many records like this one.

        Args:
            raw: The record.
            number: What its random numbers depend on.
            count: How many records there are in the batch.

        Raises:
            DemitasseError: It is broken.
        """

    def make(
        self, batch: Batch, records: list[Raw], first: int, step: int, places: Sequence[int]
    ) -> None:
        """Fill a batch.

        Args:
            batch: Its arrays are overwritten.
            records: What goes into it.
            first: Number of the record in place 0.
            step: Distance from one place's number to the next one's.
            places: The place of each record.

        Raises:
            RecordError: A record is broken; says which.
        """

    def close(self) -> None:
        """Let go of threads."""


class Loaded(NamedTuple):
    """A good record: its number and its bytes."""

    number: int
    raw: Raw


class DatabaseBatches:
    """Fills batches with the records of a database, in order, in an endless loop.

    Args:
        path: Where the database is.
        backend: ``"LMDB"`` or ``"LEVELDB"``.
        maker: What makes batches of the records.
        batch_size: Records in a batch.
        reading: Where to begin, and which share of the records to take.

    Raises:
        DataError: The database cannot be opened or is empty.
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
        """Records before the next batch."""
        return self._position

    def shapes(self) -> list[Shape]:
        """Return the shapes of a batch, one for each top."""
        slot = self._reader.number
        own = self._reader.record(slot)
        first = self._broken.find_one(
            lambda one: self._load(*one, slot), self._round_from(slot, own)
        )
        return self._maker.look(first.raw, slot, self._batch_size)

    def fill(self, batch: Batch) -> None:
        """Make the next batch.

        Raises:
            DataError: A record cannot be read or transformed; names it.
        """
        made = False
        while not made:  # all records of a batch may be broken
            first = self._reader.number
            records = self._reader.take(self._batch_size, to_end=self._whole_epochs)
            self._position += len(records) * self._step
            slots = range(first, first + len(records) * self._step, self._step)
            made = self._fill(batch, records, slots)
        self._note(batch)

    def leave_out(self, batch: Batch) -> None:
        """Go on to the batch after the next one."""
        count = self._reader.skip(self._batch_size, to_end=self._whole_epochs)
        self._position += count * self._step
        self._note(batch)

    def key_of(self, number: int) -> str:
        """Return the key of a record, counted through all rounds, for messages."""
        return self._reader.key_of(number)

    def close(self) -> None:
        """Let go of the database and of threads."""
        self._maker.close()
        self._reader.close()
        self._database.close()

    def _note(self, batch: Batch) -> None:
        """Tell a batch where it ends."""
        batch.position, batch.last = self._position, self._whole_epochs and self._reader.at_start
        batch.skipped = self._broken.count

    def _fill(self, batch: Batch, records: list[Raw], slots: range) -> bool:
        """Make a batch of some records, or of good ones for them; tell whether there are any."""
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
        """Return the good records for a batch by their places, and count the broken ones."""
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
        """Return the record for a slot, and the error of its own record where that is broken."""
        candidates = self._round_from(slot, own)
        if self._whole_epochs:
            candidates = islice(candidates, 1)
        return self._broken.find(lambda one: self._load(*one, slot), candidates)

    def _round_from(self, slot: int, own: Raw) -> Iterator[tuple[int, Raw]]:
        """Yield all records of the database with their numbers, the first of them ``slot``."""
        yield slot, own
        number = slot + 1
        while self._reader.size is None or number - slot < self._reader.size:
            yield number, self._reader.record(number)
            number += 1

    def _load(self, number: int, raw: Raw, slot: int) -> Loaded:
        """Return a record, with the random changes of a slot.

        Raises:
            DataError: It is broken; names it.
        """
        try:
            self._maker.look(raw, slot, 1)
        except DemitasseError as error:
            raise self._placed(error, number) from error
        return Loaded(number, raw)

    def _placed(self, error: DemitasseError, number: int) -> DataError:
        """Return an error that names the database and the record."""
        return DataError(error.message, self._source, self.key_of(number))
