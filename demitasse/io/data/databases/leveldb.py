"""LevelDB: read and written without the LevelDB library and its lock.

Old databases of Caffe are LevelDBs. They can be read from read-only media, and while another
program has them open. Do not write to a database that another program has open.

Source: Caffe, ``src/caffe/util/db_leveldb.cpp``; the format is LevelDB's.
"""

import heapq
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from demitasse.core.paths import read_text
from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.databases import _leveldb_files as files
from demitasse.io.data.databases.database import (
    BufferPool,
    DamagedError,
    Mode,
    Raw,
    check,
    what_is_there,
)


class LevelDbDatabase:
    """An open LevelDB: its files at opening time, and files written since by this object."""

    def __init__(self, path: Path, mode: Mode = "read") -> None:
        self.path = path
        self._writer: files.LevelDbFiles | None = None
        if mode == "new":
            if path.exists():
                message = "exists already; remove it first or write elsewhere"
                raise DataError(message, str(path), code=ErrorCode.EXISTS)
            path.mkdir(parents=True)
            with _named(path):
                self._writer = files.LevelDbFiles(path)
        self._load()
        if mode == "write":
            if self._logged:
                message = "has records in a log; open it once with LevelDB before appending"
                raise DataError(message, str(path), code=ErrorCode.UNSUPPORTED)
            with _named(path):
                self._writer = files.LevelDbFiles(path, self._manifest)

    def new_cursor(self) -> "LevelDbCursor":
        if self._writer is not None:
            self._load()  # includes records written since
        return LevelDbCursor(self)

    def new_transaction(self) -> "LevelDbTransaction":
        if self._writer is None:
            message = f"{self.path} was opened for reading; open it with mode 'write'"
            raise ConfigError(message, code=ErrorCode.READ_ONLY, field="mode", file=str(self.path))
        return LevelDbTransaction(self.path, self._writer)

    def last_key(self) -> bytes | None:
        keys = [key for key, _, _ in self._logged]
        keys += [table.last[:-8] for table in self._manifest.tables.values()]
        return max(keys, default=None)

    def close(self) -> None:
        """Close the database; cursors open their own files."""
        if self._writer is not None:
            with _named(self.path):  # what a failed write has left is written once more
                self._writer.close()

    def _load(self) -> None:
        """Read the manifest and the logs."""
        path = self.path
        if not (path / "CURRENT").is_file():
            raise DataError(what_is_there(path, "LEVELDB"), str(path), code=ErrorCode.NOT_FOUND)
        try:
            name = read_text(path / "CURRENT").strip()
            check(Path(name).name not in {"", ".."}, f"CURRENT names no file: {name!r}")
            self._manifest = files.read_manifest(path / Path(name).name)
            self._files = {file.name: file for file in path.iterdir()}
            logs = sorted(
                (int(Path(name).stem), file)
                for name, file in self._files.items()
                if name.endswith(".log") and Path(name).stem.isdecimal()
            )
            oldest = self._manifest.log_number  # older logs are in tables
            newer = (file for number, file in logs if number >= oldest)
            self._logged = sorted(chain.from_iterable(map(files.log_entries, newer)))
            self._runs = self._sorted_runs()
        except (OSError, ValueError) as error:
            raise self.damaged(error) from error

    def damaged(self, error: Exception) -> DataError:
        """Return the DataError for a failed read."""
        message = f"the LevelDB cannot be read: {error}"
        return DataError(message, str(self.path), code=ErrorCode.CORRUPT)

    def records(self) -> Generator[tuple[bytes, bytes]]:
        """Yield keys and values of all records, in key order."""
        runs = [chain.from_iterable(map(files.table_entries, run)) for run in self._runs]
        last: bytes | None = None
        for key, place, value in heapq.merge(self._logged, *runs):
            if key != last:  # older entries of the same key come later
                last = key
                if -place & 0xFF == files.VALUE:
                    yield key, value

    def _sorted_runs(self) -> list[list[Path]]:
        """Return lists of tables; the concatenated tables of a list are sorted."""
        levels: dict[int, list[tuple[bytes, Path]]] = {}
        runs = []
        for (level, number), table in self._manifest.tables.items():
            names = [f"{number:06d}.{end}" for end in ("ldb", "sst")]
            found = next((self._files[name] for name in names if name in self._files), None)
            if found is None:
                message = f"its table {names[0]} is missing"
                raise DamagedError(message)
            if level == 0:  # tables of level 0 may overlap
                runs.append([found])
            else:
                levels.setdefault(level, []).append((table.first[:-8], found))
        return runs + [[file for _, file in sorted(level)] for level in levels.values()]


class LevelDbCursor:
    """Position in a LevelDB."""

    def __init__(self, database: LevelDbDatabase) -> None:
        self._database = database
        self.seek_to_first()

    def seek_to_first(self) -> None:
        self._records = self._database.records()
        self.next()

    def next(self) -> None:
        try:
            self._current = next(self._records, None)
        except (OSError, ValueError) as error:
            raise self._database.damaged(error) from error

    def key(self) -> bytes:
        return self._record()[0]

    def value(self) -> bytes:
        return self._record()[1]

    def take(self, count: int, buffers: BufferPool) -> list[Raw]:
        taken: list[Raw] = []
        while len(taken) < count and self._current is not None:
            taken.append(self._current[1])
            self.next()
        return taken

    def valid(self) -> bool:
        return self._current is not None

    def close(self) -> None:
        self._records.close()
        self._current = None

    def _record(self) -> tuple[bytes, bytes]:
        if self._current is None:
            message = "the cursor is behind the last record"
            raise DataError(message, str(self._database.path), code=ErrorCode.OUT_OF_RANGE)
        return self._current


class LevelDbTransaction:
    """Records that are written together; each commit writes one table."""

    def __init__(self, path: Path, writer: files.LevelDbFiles) -> None:
        self._path, self._writer = path, writer
        self._pending: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self._pending.append((key, value))

    def commit(self) -> None:
        if not self._pending:
            return
        with _named(self._path):
            self._writer.add(self._pending)
        self._pending.clear()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the database in errors of the system; a failed write names no file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


open_database = LevelDbDatabase
