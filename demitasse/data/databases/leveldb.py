"""LevelDB: read without its library, and without its lock.

Old databases of Caffe are LevelDBs. They can be read while another program has them open, from
read-only media too; writing is for LMDB.

Source: Caffe, ``src/caffe/util/db_leveldb.cpp``; the format is LevelDB's.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from itertools import chain
from pathlib import Path
from typing import NoReturn

from demitasse.data.databases._leveldb_files import (
    VALUE,
    DamagedError,
    Entry,
    log_entries,
    read_manifest,
    table_entries,
)
from demitasse.data.databases.database import Mode, what_is_there
from demitasse.errors import ConfigError, DataError
from demitasse.paths import regular

__all__ = ["LevelDbCursor", "LevelDbDatabase", "open_database"]

NOT_WRITTEN = "a LevelDB can be read but not written; write an LMDB instead"


class LevelDbDatabase:
    """An open LevelDB: the files that made it up when it was opened.

    Args:
        path: Its folder.

    Raises:
        DataError: It cannot be opened; says what was found there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "CURRENT").is_file():
            raise DataError(what_is_there(path, "LEVELDB"), str(path))
        try:
            name = regular(path / "CURRENT").read_text(encoding="ascii").strip()
            self._manifest = read_manifest(path / Path(name).name)
            self._files = {file.name: file for file in path.iterdir()}
            self._logged = self._read_logs()
            self._runs = self._sorted_runs()
        except (OSError, ValueError) as error:
            raise self.damaged(error) from error

    def new_cursor(self) -> LevelDbCursor:
        """Return a cursor at the first record."""
        return LevelDbCursor(self)

    def new_transaction(self) -> NoReturn:
        """Refuse: a LevelDB is only read."""
        raise ConfigError(NOT_WRITTEN)

    def close(self) -> None:
        """Do nothing: a cursor opens the files it reads."""

    def damaged(self, error: Exception) -> DataError:
        """Return the error to raise for what went wrong while reading."""
        return DataError(f"the LevelDB cannot be read: {error}", str(self.path))

    def newest(self) -> Generator[tuple[bytes, bytes]]:
        """Yield keys and contents of all records, in order of their keys."""
        runs = [chain.from_iterable(map(table_entries, run)) for run in self._runs]
        last: bytes | None = None
        for key, place, value in heapq.merge(self._logged, *runs):
            if key != last:  # older entries of the same key come later
                last = key
                if -place & 0xFF == VALUE:
                    yield key, value

    def _read_logs(self) -> list[Entry]:
        """Return what has not become part of a table yet, in order."""
        logs = sorted(
            (int(Path(name).stem), file)
            for name, file in self._files.items()
            if name.endswith(".log") and Path(name).stem.isdecimal()
        )
        oldest = self._manifest.log_number
        return sorted(e for number, file in logs if number >= oldest for e in log_entries(file))

    def _sorted_runs(self) -> list[list[Path]]:
        """Return groups of tables; going through the tables of a group gives entries in order."""
        levels: dict[int, list[tuple[bytes, Path]]] = {}
        runs = []
        for (level, number), first_key in self._manifest.tables.items():
            names = [f"{number:06d}.{end}" for end in ("ldb", "sst")]
            found = next((self._files[name] for name in names if name in self._files), None)
            if found is None:
                message = f"its table {names[0]} is missing"
                raise DamagedError(message)
            if level == 0:  # these may overlap
                runs.append([found])
            else:
                levels.setdefault(level, []).append((first_key, found))
        return runs + [[file for _, file in sorted(level)] for level in levels.values()]


class LevelDbCursor:
    """A place in a LevelDB."""

    def __init__(self, database: LevelDbDatabase) -> None:
        self._database = database
        self.seek_to_first()

    def seek_to_first(self) -> None:
        """Go to the first record."""
        self._records = self._database.newest()
        self.next()

    def next(self) -> None:
        """Go to the next record."""
        try:
            self._current = next(self._records, None)
        except (OSError, ValueError) as error:
            raise self._database.damaged(error) from error

    def key(self) -> bytes:
        """Return the key of the current record."""
        return self._record()[0]

    def value(self) -> bytes:
        """Return the contents of the current record."""
        return self._record()[1]

    def valid(self) -> bool:
        """Whether there is a current record."""
        return self._current is not None

    def close(self) -> None:
        """Close the files."""
        self._records.close()
        self._current = None

    def _record(self) -> tuple[bytes, bytes]:
        if self._current is None:
            message = "the cursor is beyond the last record"
            raise DataError(message, str(self._database.path))
        return self._current


def open_database(path: Path, mode: Mode) -> LevelDbDatabase:
    """Open the LevelDB at ``path`` for reading.

    Raises:
        ConfigError: It is to be written.
    """
    if mode != "read":
        raise ConfigError(NOT_WRITTEN)
    return LevelDbDatabase(path)
