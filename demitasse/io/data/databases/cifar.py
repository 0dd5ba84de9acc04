"""CIFAR-10 files, and the databases that Caffe's example makes of them.

A record is a label (one byte) and an image of 3 x 32 x 32 bytes: red, green, blue.

Source: Caffe, ``examples/cifar10/convert_cifar_data.cpp``; the format is described at
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.bad_records import read_file
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.databases.writing import write_records
from demitasse.io.proto import Datum

FILES = {
    "train": [f"data_batch_{number}.bin" for number in range(1, 6)],
    "test": ["test_batch.bin"],
}
"""Database -> its files, in order."""

SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32


def read_cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (N, 3, 32, 32) and labels (N,) of one file, uint8."""
    content = read_file(path)
    if not content or len(content) % RECORD:
        message = f"got {len(content)} bytes, expected a multiple of {RECORD}, the size of a record"
        raise DataError(message, str(path), code=ErrorCode.CORRUPT, got=len(content))
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, *SHAPE), records[:, 0]


def convert(
    folder: Path, out: Path, backend: str = "LMDB", *, overwrite: bool = False
) -> dict[Path, int]:
    """Write ``cifar10_train_lmdb`` and ``cifar10_test_lmdb``, or the same as LevelDBs.

    Returns the number of records of each.

    Raises:
        DataError: A file is missing or damaged, or a database exists.
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
