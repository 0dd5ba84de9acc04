"""CIFAR-10's own files, and the databases that Caffe's example makes of them.

A record of a file is its label, one byte, and an image of 3 x 32 x 32 bytes: red, green, blue.

Source: Caffe, ``examples/cifar10/convert_cifar_data.cpp``; the format is described at
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from demitasse.core.paths import read_bytes
from demitasse.errors import DataError
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.databases.writing import write_records
from demitasse.io.proto import Datum

__all__ = ["FILES", "convert", "read_cifar"]

FILES = {
    "train": [f"data_batch_{number}.bin" for number in range(1, 6)],
    "test": ["test_batch.bin"],
}
"""Database -> the files it is made of, in order."""

SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32


def read_cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read one file.

    Returns:
        Images (N, 3, 32, 32) and labels (N,), uint8.

    Raises:
        DataError: It cannot be read, or does not hold whole records.
    """
    try:
        content = read_bytes(path)
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise DataError(message, str(path)) from error
    if not content or len(content) % RECORD:
        message = f"CIFAR-10's files hold records of {RECORD} bytes; this one has {len(content)}"
        raise DataError(message, str(path))
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, *SHAPE), records[:, 0]


def convert(
    folder: Path, out: Path, backend: str = "LMDB", *, overwrite: bool = False
) -> dict[Path, int]:
    """Make ``cifar10_train_lmdb`` and ``cifar10_test_lmdb``, or the same as LevelDBs.

    Args:
        folder: Where the six files are.
        out: Folder to write to.
        backend: ``"LMDB"`` or ``"LEVELDB"``.
        overwrite: Whether to replace databases that are there.

    Returns:
        For each database that was written, how many records it holds.

    Raises:
        DataError: A file is missing or damaged, or a database is there already.
    """
    return {
        path: write_records(path, _records(folder, split), overwrite=overwrite, backend=backend)
        for split, path in ((s, out / f"cifar10_{s}_{backend.lower()}") for s in FILES)
    }


def _records(folder: Path, split: str) -> Iterator[tuple[bytes, Datum]]:
    number = 0
    for name in FILES[split]:
        for image, label in zip(*read_cifar(folder / name), strict=True):
            yield b"%05d" % number, array_to_datum(image, int(label))
            number += 1
