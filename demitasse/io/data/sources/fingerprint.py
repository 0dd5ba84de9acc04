"""What tells one set of records from another without reading all of it."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from demitasse.core.hashing import sha256
from demitasse.core.paths import read_bytes
from demitasse.io.data.databases.database import open_db

__all__ = ["Fingerprint", "database_fingerprint", "list_fingerprint"]


@dataclass(frozen=True)
class Fingerprint:
    """What is known of a set of records.

    Attributes:
        path: Where it is.
        records: How many there are; 0 where counting would mean reading them.
        digest: SHA-256 of what was looked at: the first record, or the list of them.
    """

    path: Path
    records: int
    digest: bytes


def database_fingerprint(path: Path, backend: str) -> Fingerprint:
    """Return the number of records of a database and a digest of the first.

    Args:
        path: Where it is.
        backend: ``"LMDB"`` or ``"LEVELDB"``.

    Raises:
        DataError: It cannot be read.
    """
    with closing(open_db(path, backend)) as database, closing(database.new_cursor()) as cursor:
        digest = sha256()
        if cursor.valid():
            digest.update(repr(cursor.key()).encode())
            digest.update(cursor.value())
        # a LevelDB would have to be read from one end to the other to be counted
        records = len(database) if isinstance(database, Sized) else 0
        return Fingerprint(path.resolve(), records, digest.digest())


def list_fingerprint(path: Path, records: int = 0, files: Sequence[Path] = ()) -> Fingerprint:
    """Return a digest of a text file that lists records, and of the sizes of the files it names.

    Args:
        path: The list.
        records: How many records there are; 0 where that is not known.
        files: Those of the files whose sizes count.

    Raises:
        OSError: The list or a file is not there.
    """
    digest = sha256(read_bytes(path))
    for file in files:
        digest.update(str(file.stat().st_size).encode() + b" ")
    return Fingerprint(path.resolve(), records, digest.digest())
