"""RecordReader: the records of a database in an endless loop, as one of several ranks takes them.

Source: Caffe, ``src/caffe/layers/data_layer.cpp`` (``Next``, ``Skip``).
"""

from __future__ import annotations

from demitasse.errors import DataError
from demitasse.io.data.databases.database import Database, Raw, printable
from demitasse.io.data.databases.rooms import Rooms
from demitasse.io.data.sources.source import ALONE, Shard

__all__ = ["RecordReader"]


class RecordReader:
    """Reads the records of one rank's share.

    Record numbers count up for ever; after the last record of the database comes its first.

    Args:
        database: Where the records are.
        position: Records that all ranks together have read before.
        shard: The share.

    Raises:
        DataError: The database holds no records.
    """

    def __init__(self, database: Database, position: int = 0, shard: Shard = ALONE) -> None:
        self._database, self._step = database, shard.ranks
        self._cursor, self._rooms = database.new_cursor(), Rooms()
        self._size: int | None = None  # records in the database, once we came to its end
        self._at = 0  # record in the database
        self._scout: RecordReader | None = None
        self.number = position + shard.rank
        if not self._cursor.valid():
            message = "the database holds no records"
            raise DataError(message, str(database.path))
        self._advance(self.number)

    def begin_round(self) -> int:
        """Go back to the first record of the database; return how many records that is."""
        back, self._at = self._at, 0
        if back:
            self._cursor.seek_to_first()
            self.number -= back
        return back

    def peek(self) -> Raw:
        """Return the record that ``take`` would begin with."""
        return self._cursor.value()

    def take(self, count: int, *, to_end: bool = False) -> list[Raw]:
        """Return the next ``count`` records; they are valid until the next call or ``close``.

        Args:
            count: How many.
            to_end: Whether to return fewer when the last record of the database comes before.
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
        """Go on as ``take`` does; return how many records that were."""
        skipped = 0
        while skipped < count and not (to_end and skipped and self.at_start):
            self._advance(self._step)
            skipped += 1
        self.number += skipped * self._step
        return skipped

    @property
    def at_start(self) -> bool:
        """Whether ``take`` would begin with the first record of the database."""
        return self._at == 0

    @property
    def size(self) -> int | None:
        """Records in the database, once its end was seen."""
        return self._size or (self._scout._size if self._scout else None)

    def record(self, number: int) -> bytes:
        """Return any record; quickest for numbers that grow from call to call."""
        return bytes(self._sent_to(number).peek())

    def key_of(self, number: int) -> str:
        """Return the key of any record, for messages."""
        return printable(self._sent_to(number)._cursor.key())

    def close(self) -> None:
        """Let go of the database; what was taken is dead now."""
        if self._scout is not None:
            self._scout.close()
        self._cursor.close()

    def _sent_to(self, number: int) -> RecordReader:
        """Return a second reader, moved to a record."""
        scout = self._scout
        if scout is None or scout.number > number:
            if scout is not None:
                scout.close()
            self._scout = scout = RecordReader(self._database, number)
        scout._advance(number - scout.number)
        scout.number = number
        return scout

    def _advance(self, steps: int) -> None:
        """Go on, from the end to the beginning where need be."""
        cursor = self._cursor
        while steps:
            if self._size is not None and steps >= self._size:
                steps %= self._size  # whole rounds lead back to here
                continue
            steps -= 1
            cursor.next()
            self._went(1)

    def _went(self, steps: int) -> None:
        """Take note that the cursor went on, and bring it from the end to the beginning."""
        self._at += steps
        if not self._cursor.valid():
            self._size, self._at = self._at, 0
            self._cursor.seek_to_first()
