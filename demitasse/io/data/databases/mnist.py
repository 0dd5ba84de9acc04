"""MNIST files, and the databases that Caffe's examples make of them.

Source: Caffe, ``examples/mnist/convert_mnist_data.cpp`` and
``examples/siamese/convert_mnist_siamese_data.cpp``; the format is described at
http://yann.lecun.com/exdb/mnist/.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from demitasse.core.paths import code_of, reason_of, regular_file
from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.databases.database import DEFLATES
from demitasse.io.data.databases.writing import write_database

SPLITS = {"train": "train", "test": "t10k"}  # database -> prefix of its two file names

KINDS = (("images-idx3-ubyte", "images.idx3-ubyte"), ("labels-idx1-ubyte", "labels.idx1-ubyte"))
UBYTE = 8


def read_idx(path: Path) -> np.ndarray:
    """Return the contents of an idx-ubyte file, gzipped or plain.

    Shape: as declared, e.g. (60000, 28, 28) or (60000,); uint8.

    Raises:
        DataError: The file cannot be read, or is no idx-ubyte file.
    """
    try:
        with regular_file(path).open("rb") as file:
            gzipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if gzipped else path.open("rb") as file:
            zeros, kind, axes = struct.unpack(">HBB", file.read(4))
            if zeros or kind != UBYTE or not axes:
                message = "this is not an idx file of unsigned bytes"
                raise DataError(message, str(path), code=ErrorCode.UNREADABLE)
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
            size = math.prod(shape)
            most = path.stat().st_size * (DEFLATES if gzipped else 1)
            if size > most:
                message = f"the file declares {shape} = {size} bytes; it is too short"
                raise DataError(message, str(path), code=ErrorCode.TRUNCATED, expected=size)
            content = file.read(size + 1)
    except (OSError, EOFError, struct.error, zlib.error) as error:
        message = f"cannot be read as an idx file: {reason_of(error, path)}"
        raise DataError(message, str(path), code=code_of(error)) from error
    if len(content) != size:
        more = "more than that" if len(content) > size else str(len(content))
        message = f"the file declares {shape} = {size} bytes, but has {more}"
        raise DataError(message, str(path), code=ErrorCode.COUNT_MISMATCH, expected=size)
    try:
        return np.frombuffer(content, np.uint8).reshape(shape)
    except ValueError as error:  # an axis of 0, and another that is too long
        raise DataError(str(error), str(path), code=ErrorCode.CORRUPT) from error


def read_mnist(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (N, 28, 28) and labels (N,) of one split, uint8."""
    return _read_pair(*(_find(folder, SPLITS[split], names) for names in KINDS))


def convert_files(
    images: Path, labels: Path, out: Path, *, overwrite: bool = False, backend: str = "LMDB"
) -> int:
    """Write a database of a file of images and a file of labels; return the number of records."""
    records = _records(*_read_pair(images, labels))
    return write_database(out, records, overwrite=overwrite, backend=backend)


def convert_pairs(
    images: Path, labels: Path, out: Path, seed: int = 0, *, overwrite: bool = False,
    backend: str = "LEVELDB",
) -> int:  # fmt: skip
    """Write random pairs of images as two channels; a label is 1 for equal labels, else 0."""
    pixels, classes = _read_pair(images, labels)
    drawn = np.random.default_rng(seed).integers(len(pixels), size=(len(pixels), 2))
    records = ((pixels[pair], int(classes[pair[0]] == classes[pair[1]])) for pair in drawn)
    return write_database(out, records, overwrite=overwrite, backend=backend)


def _read_pair(image_file: Path, label_file: Path) -> tuple[np.ndarray, np.ndarray]:
    images, labels = read_idx(image_file), read_idx(label_file)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        got, expected, code = labels.shape, images.shape, ErrorCode.COUNT_MISMATCH
        message = f"{expected} images and {got} labels do not belong together"
        place = str(image_file.parent)
        raise DataError(message, place, code=code, got=got, expected=expected)
    return images, labels


def convert(
    folder: str | Path, out: str | Path | None = None, *, overwrite: bool = False,
    backend: str = "LMDB",
) -> dict[Path, int]:  # fmt: skip
    """Write ``mnist_train_lmdb`` and ``mnist_test_lmdb``, or the same as LevelDBs.

    ``folder`` has the four files, gzipped or plain, and by default gets the databases. Returns the
    number of records of each database.

    Raises:
        DataError: A file is missing or damaged, or a database exists.
    """
    folder = Path(folder)
    out = folder if out is None else Path(out)
    splits = {split: read_mnist(folder, split) for split in SPLITS}
    kind = backend.lower()
    return {
        path: write_database(path, _records(*splits[split]), overwrite=overwrite, backend=backend)
        for split, path in ((split, out / f"mnist_{split}_{kind}") for split in SPLITS)
    }


def _records(images: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    for image, label in zip(images, labels.tolist(), strict=True):
        yield image[None], label  # (1, H, W)


def _find(folder: Path, split: str, kinds: tuple[str, ...]) -> Path:
    names = [f"{split}-{kind}{end}" for kind in kinds for end in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    message = f"the folder has none of {', '.join(names)}"
    raise DataError(message, str(folder), code=ErrorCode.NOT_FOUND)
