"""Fingerprints of record sets, computed without reading all records."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse.core.hashing import sha256
from demitasse.core.paths import read_bytes
from demitasse.io.data.databases.database import open_db


@dataclass(frozen=True)
class Fingerprint:
    """Identity of a set of records.

    Attributes:
        records: Number of records; 0 if counting would need a full read.
        digest: SHA-256 of the first record, or of the list of records.
    """

    path: Path
    records: int
    digest: bytes


def database_fingerprint(path: Path, backend: str) -> Fingerprint:
    """Return the number of records of a database and a digest of the first."""
    with closing(open_db(path, backend)) as database, closing(database.new_cursor()) as cursor:
        digest = sha256()
        if cursor.valid():
            digest.update(repr(cursor.key()).encode())
            digest.update(cursor.value())
        # counting the records of a LevelDB needs a full read
        records = len(database) if isinstance(database, Sized) else 0
        return Fingerprint(path.resolve(), records, digest.digest())


def list_fingerprint(path: Path, records: int = 0, files: Sequence[Path] = ()) -> Fingerprint:
    """Return a digest of a list file, and of the sizes of ``files`` that it names."""
    digest = sha256(read_bytes(path))
    for file in files:
        digest.update(str(file.stat().st_size).encode() + b" ")
    return Fingerprint(path.resolve(), records, digest.digest())


def rows_fingerprint(data: np.ndarray, labels: np.ndarray) -> Fingerprint:
    """Return the number of rows of arrays in memory, and a digest of first row and labels."""
    digest = sha256(np.ascontiguousarray(data[0]).tobytes())
    digest.update(np.ascontiguousarray(labels).tobytes())
    return Fingerprint(Path("memory"), len(data), digest.digest())
