"""Batches of database records, for one process or several; fingerprints of record sets.

Source: Caffe, ``src/caffe/layers/data_layer.cpp`` (``load_batch``, ``Next``, ``Skip``).
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from demitasse.core.deprecated import renamed_arguments
from demitasse.errors import DataError, DemitasseError, ErrorCode
from demitasse.io.data.bad_records import RecordError, located, nothing_left
from demitasse.io.data.databases.database import BufferPool, Database, Raw, open_db, printable
from demitasse.io.data.sources.collate import AnnotatedMaker, DatumMaker
from demitasse.io.data.sources.source import UNSHARDED, Batch, ReaderConfig, Shape, Shard


class RecordReader:
    """Reads the records of one shard, numbered consecutively over all epochs."""

    def __init__(self, database: Database, position: int = 0, shard: Shard = UNSHARDED) -> None:
        self._database, self._step = database, shard.world_size
        self._cursor, self._buffers = database.new_cursor(), BufferPool()
        self._size: int | None = None  # records in the database, known after one epoch
        self._at = 0  # index in the database
        self._second: RecordReader | None = None
        self.number = position + shard.rank
        if not self._cursor.valid():
            message = "the database has no records"
            raise DataError(message, str(database.path), code=ErrorCode.NOT_FOUND)
        self._advance(self.number)

    def begin_round(self) -> int:
        """Move back to the first record of the database; return the distance in records."""
        back, self._at = self._at, 0
        if back:
            self._cursor.seek_to_first()
            self.number -= back
        return back

    def take(self, count: int, *, to_end: bool = False) -> list[Raw]:
        """Return ``count`` records, or fewer ``to_end``; valid until the next call or ``close``."""
        self._buffers.clear()
        taken: list[Raw] = []
        while len(taken) < count and not (to_end and taken and self.at_start):
            together = count - len(taken) if self._step == 1 else 1
            part = self._cursor.take(together, self._buffers)
            taken += part
            self._count_steps(len(part))
            self._advance(self._step - 1)
        self.number += len(taken) * self._step
        return taken

    def skip(self, count: int, *, to_end: bool = False) -> int:
        """Advance like ``take``; return the number of records."""
        skipped = 0
        while skipped < count and not (to_end and skipped and self.at_start):
            self._advance(self._step)
            skipped += 1
        self.number += skipped * self._step
        return skipped

    @property
    def at_start(self) -> bool:
        """Return True if the next record is the first of the database."""
        return self._at == 0

    @property
    def size(self) -> int | None:
        """Records in the database, or None before its end was reached."""
        return self._size or (self._second._size if self._second else None)

    def record(self, number: int) -> bytes:
        """Return any record; fastest for increasing numbers."""
        return bytes(self._reader_at(number)._cursor.value())

    def key_of(self, number: int) -> str:
        """Return the key of any record, for messages."""
        return printable(self._reader_at(number)._cursor.key())

    def close(self) -> None:
        """Release the database; records of ``take`` become invalid."""
        if self._second is not None:
            self._second.close()
        self._cursor.close()

    def _reader_at(self, number: int) -> "RecordReader":
        """Return a second reader, positioned at a record."""
        second = self._second
        if second is None or second.number > number:
            if second is not None:
                second.close()
            self._second = second = RecordReader(self._database, number)
        second._advance(number - second.number)
        second.number = number
        return second

    def _advance(self, steps: int) -> None:
        """Advance, from the last record to the first."""
        cursor = self._cursor
        while steps:
            if self._size is not None and steps >= self._size:
                steps %= self._size  # whole epochs lead back to the same record
                continue
            steps -= 1
            cursor.next()
            self._count_steps(1)

    def _count_steps(self, steps: int) -> None:
        """Count steps of the cursor, and move the cursor from the end to the first record."""
        self._at += steps
        if not self._cursor.valid():
            self._size, self._at = self._at, 0
            self._cursor.seek_to_first()


BatchMaker = DatumMaker | AnnotatedMaker
"""Converts database records to batches, in the prefetching thread."""

NumberedRecord = tuple[int, Raw]  # number of a record, and its bytes


class DatabaseBatches:
    """Fills batches with the records of a database, in order, in an endless loop.

    ``position`` is the number of records used by all processes before the next batch. A database
    that cannot be opened, or is empty, is a DataError.
    """

    @renamed_arguments(reading="config")
    def __init__(
        self, path: Path, backend: str, maker: BatchMaker, batch_size: int, *,
        config: ReaderConfig | None = None,
    ) -> None:  # fmt: skip
        config = config or ReaderConfig()
        self._source, self._maker, self._batch_size = str(path), maker, batch_size
        self.position, self._step = config.position, config.shard.world_size
        self._whole_epochs, self._policy = config.whole_epochs, config.bad_records
        self._database = open_db(path, backend)
        self._reader = RecordReader(self._database, config.position, config.shard)
        if self._whole_epochs:
            self.position -= self._reader.begin_round()

    def shapes(self) -> list[Shape]:
        """Return the shapes of a batch, one per top."""
        slot = self._reader.number
        own = self._reader.record(slot)
        _, first = self._policy.find_one(
            partial(self._checked, slot=slot), self._round_from(slot, own)
        )
        return self._maker.batch_shapes(first, slot, self._batch_size)

    def fill(self, batch: Batch) -> None:
        """Make the next batch."""
        made = False
        while not made:  # all records of a batch may be bad
            first = self._reader.number
            records = self._reader.take(self._batch_size, to_end=self._whole_epochs)
            self.position += len(records) * self._step
            slots = range(first, first + len(records) * self._step, self._step)
            made = self._fill(batch, records, slots)
        self._note(batch)

    def skip(self, batch: Batch) -> None:
        count = self._reader.skip(self._batch_size, to_end=self._whole_epochs)
        self.position += count * self._step
        self._note(batch)

    def close(self) -> None:
        self._maker.close()
        self._reader.close()
        self._database.close()

    def _note(self, batch: Batch) -> None:
        """Write the position behind the batch into the batch."""
        batch.position, batch.last = self.position, self._whole_epochs and self._reader.at_start
        batch.skipped = self._policy.count

    def _fill(self, batch: Batch, records: list[Raw], slots: range) -> bool:
        """Make a batch of records, or of their replacements; return False if none is good."""
        try:
            self._maker.make(batch, records, slots.start, self._step, range(len(slots)))
            return True
        except RecordError as error:
            if not (error.broken and self._policy.skip):
                raise self._located(error, slots[error.index]) from error
        except DemitasseError as error:
            raise self._located(error, slots.start) from error
        good = self._without_broken(records, slots)
        if good:
            try:
                raws = [raw for _, raw in good.values()]
                self._maker.make(batch, raws, slots.start, self._step, list(good))
            except RecordError as error:
                number, _ = list(good.values())[error.index]
                raise self._located(error, number) from error
        return bool(good)

    def _without_broken(self, records: list[Raw], slots: range) -> dict[int, NumberedRecord]:
        """Return the good records of a batch by index, and count the bad ones."""
        good: dict[int, NumberedRecord] = {}
        for place, (slot, raw) in enumerate(zip(slots, records, strict=True)):
            most = 1 if self._whole_epochs else None  # a bad record is not replaced
            candidates = islice(self._round_from(slot, raw), most)
            one, fault = self._policy.find(partial(self._checked, slot=slot), candidates)
            if fault is not None:
                self._policy.note(fault, slot // (self._reader.size or slot + 1))
            if one is not None:
                good[place] = one
            elif fault is not None and not self._whole_epochs:
                raise fault
        if not good and self._reader.at_start:
            raise nothing_left(self._source)
        return good

    def _round_from(self, slot: int, own: Raw) -> Iterator[NumberedRecord]:
        """Yield (number, value) of all records of the database, beginning with ``slot``."""
        yield slot, own
        number = slot + 1
        while self._reader.size is None or number - slot < self._reader.size:
            yield number, self._reader.record(number)
            number += 1

    def _checked(self, record: NumberedRecord, slot: int) -> NumberedRecord:
        """Return a record, checked with the random numbers of a slot."""
        number, raw = record
        try:
            self._maker.batch_shapes(raw, slot, 1)
        except DemitasseError as error:
            raise self._located(error, number) from error
        return record

    def _located(self, error: DemitasseError, number: int) -> DataError:
        """Return the error with the names of the database and the record."""
        return located(error, self._source, self._reader.key_of(number))
