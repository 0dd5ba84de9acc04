"""Writers of databases; a database appears at its path when it is complete."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
from google.protobuf.message import Message

from demitasse.core import atomic
from demitasse.core.paths import read_bytes, real_path
from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.databases.database import Database, Mode, open_db
from demitasse.io.data.databases.datum import annotated_datum, array_to_datum
from demitasse.io.proto import Datum

COMMIT_EVERY = 1000  # records per transaction
PRIVATE = 0o700  # mode of folders until they are complete
SETTINGS = "settings.json"  # file beside an incomplete database: the settings of its records


def write_database(
    path: str | Path, records: Iterable[tuple[np.ndarray, int]], *, overwrite: bool = False,
    backend: str = "LMDB",
) -> int:  # fmt: skip
    """Write arrays and their labels as a database; return the number of records.

    The keys are 00000000, 00000001, ... ``path`` is the folder to create, and ``backend`` is
    ``"LMDB"`` or ``"LEVELDB"``. Arrays are (C, H, W), uint8 or float32.

    Raises:
        ConfigError: The backend is unknown.
        DataError: ``path`` exists or cannot be written.
        OSError: The database cannot be written, e.g. the disk is full.
    """
    numbered = ((b"%08d" % i, array_to_datum(*record)) for i, record in enumerate(records))
    return write_records(path, numbered, overwrite=overwrite, backend=backend)


def write_annotations(
    path: str | Path, records: Iterable[tuple[np.ndarray | Datum, Sequence[Sequence[float]]]], *,
    overwrite: bool = False, backend: str = "LMDB",
) -> int:  # fmt: skip
    """Write images with objects as a database; ``records`` are arguments of ``annotated_datum``.

    Other arguments, keys and result are as of ``write_database``; errors are those of both.
    """
    numbered = ((b"%08d" % i, annotated_datum(*record)) for i, record in enumerate(records))
    return write_records(path, numbered, overwrite=overwrite, backend=backend)


def write_records(
    path: str | Path, records: Iterable[tuple[bytes, Message]], *, overwrite: bool = False,
    backend: str = "LMDB",
) -> int:  # fmt: skip
    """Write keys and records as a database; see ``write_database``."""
    with new_database(Path(path), backend, overwrite=overwrite) as database:
        written = Records(database)
        for key, datum in records:
            written.add(key, datum)
        written.commit()
    return written.count


class Records:
    """Adds records to a database, and commits regularly."""

    def __init__(self, database: Database) -> None:
        self._transaction = database.new_transaction()
        self.count = 0

    def add(self, key: bytes, record: Message) -> bool:
        """Add a record; return True if all records so far were committed."""
        self._transaction.put(key, record.SerializeToString())
        self.count += 1
        if self.count % COMMIT_EVERY:
            return False
        self.commit()
        return True

    def commit(self) -> None:
        """Write the records added since the last commit."""
        self._transaction.commit()


@contextmanager
def new_database(path: Path, backend: str, *, overwrite: bool = False) -> Iterator[Database]:
    """Open a database that appears at ``path`` if the block succeeds; otherwise nothing remains."""
    _check_replaceable(path, overwrite=overwrite)
    path = real_path(path) if path.is_symlink() else path  # the link remains
    with atomic.partial_folder(path) as folder:
        with closing(open_db(folder / "database", backend, "new")) as database:
            yield database
        _check_replaceable(path, overwrite=overwrite)  # files may have come meanwhile
        atomic.put_in_place(folder / "database", path)


@contextmanager
def resumable_database(
    path: Path, backend: str, settings: Mapping[str, object], *, overwrite: bool = False,
    resume: bool = False,
) -> Iterator[Database]:  # fmt: skip
    """Open a database for writing that appears at ``path`` when the block succeeds.

    If the block raises, or the process dies, committed records remain in ``.NAME.partial`` beside
    ``path``. A later call with ``resume`` and equal ``settings`` continues there.
    """
    _check_replaceable(path, overwrite=overwrite)
    path = real_path(path) if path.is_symlink() else path  # the link remains
    folder = path.with_name(f".{path.name}.partial")
    settings = json.loads(json.dumps({**settings, "backend": backend}))
    _need_own(folder)
    folder.mkdir(PRIVATE, parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(atomic.locked_folder(folder))
        except BlockingIOError:
            message = "another process writes there; wait for its end, or write elsewhere"
            raise DataError(message, str(folder), code=ErrorCode.IN_USE) from None
        begun = resume and (folder / SETTINGS).exists()
        if begun:
            _need_same(settings, folder)
        else:
            shutil.rmtree(folder / "database", ignore_errors=True)
            (folder / SETTINGS).unlink(missing_ok=True)
        mode: Mode = "write" if begun else "new"
        with closing(open_db(folder / "database", backend, mode)) as database:
            if not begun:  # resumable from here on
                atomic.write_bytes(folder / SETTINGS, json.dumps(settings).encode())
            yield database
        _check_replaceable(path, overwrite=overwrite)  # files may have come meanwhile
        atomic.put_in_place(folder / "database", path)
        shutil.rmtree(folder, ignore_errors=True)


def _need_own(folder: Path) -> None:
    """Refuse a folder with other contents than those of an interrupted call."""
    if not folder.exists() and not folder.is_symlink():
        return
    names = {file.name for file in folder.iterdir()} if folder.is_dir() else {folder.name}
    database = folder / "database"
    inside = {file.name for file in database.iterdir()} if database.is_dir() else set()
    others = {name for name in names if name not in {SETTINGS, "database"}}
    others |= {name for name in inside if not _of_a_database(name)}
    if folder.is_symlink() or not all(map(atomic.is_partial_name, others)):
        message = "is no folder of an interrupted conversion; move it away, or write elsewhere"
        raise DataError(message, str(folder), code=ErrorCode.EXISTS)


def _need_same(settings: Mapping[str, object], folder: Path) -> None:
    """Refuse to resume a database with other settings."""
    try:
        before = dict(json.loads(read_bytes(folder / SETTINGS)))
    except (OSError, RecursionError, TypeError, ValueError) as error:
        message = f"cannot be resumed: {error}; start again without resume"
        raise DataError(message, str(folder), code=ErrorCode.UNREADABLE) from error
    others = [name for name, value in settings.items() if before.get(name) != value]
    if others:
        names = ", ".join(others)
        message = f"was started with another {names}; use the same, or start without resume"
        raise DataError(message, str(folder), code=ErrorCode.INCOMPATIBLE, field=names)


def _check_replaceable(path: Path, *, overwrite: bool) -> None:
    """Refuse to replace a path that is no database, or without ``overwrite``."""
    if not path.exists():
        return
    if not overwrite:
        message = "exists already; remove it first, overwrite it or write elsewhere"
        raise DataError(message, str(path), code=ErrorCode.EXISTS)
    if not path.is_dir() or not all(_of_a_database(file.name) for file in path.iterdir()):
        message = "is no folder with a database alone, so it is not overwritten"
        raise DataError(message, str(path), code=ErrorCode.EXISTS)


def _of_a_database(name: str) -> bool:
    known = {"data.mdb", "lock.mdb", "CURRENT", "LOCK", "LOG", "LOG.old"}
    return name in known or name.startswith("MANIFEST-") or name.endswith((".ldb", ".sst", ".log"))
