"""RecordReader: the records of a database in an endless loop, for one process of several.

Source: Caffe, ``src/caffe/layers/data_layer.cpp`` (``Next``, ``Skip``).
"""

from __future__ import annotations

from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.databases.database import Database, Raw, printable
from demitasse.io.data.databases.rooms import Rooms
from demitasse.io.data.sources.source import ALONE, Shard

__all__ = ["RecordReader"]


class RecordReader:
    """Reads the records of one shard.

    Records are numbered consecutively over all epochs.

    Args:
        database: The database.
        position: Records used by all processes before.
        shard: The shard.

    Raises:
        DataError: The database is empty.
    """

    def __init__(self, database: Database, position: int = 0, shard: Shard = ALONE) -> None:
        self._database, self._step = database, shard.ranks
        self._cursor, self._rooms = database.new_cursor(), Rooms()
        self._size: int | None = None  # records in the database, known after one epoch
        self._at = 0  # index in the database
        self._scout: RecordReader | None = None
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

    def peek(self) -> Raw:
        """Return the next record of ``take``."""
        return self._cursor.value()

    def take(self, count: int, *, to_end: bool = False) -> list[Raw]:
        """Return the next ``count`` records; valid until the next call or ``close``.

        Args:
            count: Number of records.
            to_end: Stop after the last record of the database.
        """
        self._rooms.clear()
        taken: list[Raw] = []
        while len(taken) < count and not (to_end and taken and self.at_start):
            together = count - len(taken) if self._step == 1 else 1
            part = self._cursor.take(together, self._rooms)
            taken += part
            self._went(len(part))
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
        return self._size or (self._scout._size if self._scout else None)

    def record(self, number: int) -> bytes:
        """Return any record; fastest for increasing numbers."""
        return bytes(self._sent_to(number).peek())

    def key_of(self, number: int) -> str:
        """Return the key of any record, for messages."""
        return printable(self._sent_to(number)._cursor.key())

    def close(self) -> None:
        """Release the database; records of ``take`` become invalid."""
        if self._scout is not None:
            self._scout.close()
        self._cursor.close()

    def _sent_to(self, number: int) -> RecordReader:
        """Return a second reader, positioned at a record."""
        scout = self._scout
        if scout is None or scout.number > number:
            if scout is not None:
                scout.close()
            self._scout = scout = RecordReader(self._database, number)
        scout._advance(number - scout.number)
        scout.number = number
        return scout

    def _advance(self, steps: int) -> None:
        """Advance, from the last record to the first."""
        cursor = self._cursor
        while steps:
            if self._size is not None and steps >= self._size:
                steps %= self._size  # whole epochs lead back to the same record
                continue
            steps -= 1
            cursor.next()
            self._went(1)

    def _went(self, steps: int) -> None:
        """Count steps of the cursor, and move the cursor from the end to the first record."""
        self._at += steps
        if not self._cursor.valid():
            self._size, self._at = self._at, 0
            self._cursor.seek_to_first()
