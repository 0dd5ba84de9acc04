"""MNIST's own files, and the databases that Caffe's examples make of them.

Source: Caffe, ``examples/mnist/convert_mnist_data.cpp`` and
``examples/siamese/convert_mnist_siamese_data.cpp``; the format is described at
http://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from demitasse.core.paths import regular_file
from demitasse.errors import DataError
from demitasse.io.data.databases.writing import write_database

__all__ = ["SPLITS", "convert", "convert_files", "convert_pairs", "read_idx", "read_mnist"]

SPLITS = {"train": "train", "test": "t10k"}
"""Database -> what the names of its two files begin with."""

KINDS = (("images-idx3-ubyte", "images.idx3-ubyte"), ("labels-idx1-ubyte", "labels.idx1-ubyte"))
UBYTE = 8
DEFLATES = 1032
"""How many bytes one byte of a gzipped file can be at most."""


def read_idx(path: Path) -> np.ndarray:
    """Read an idx-ubyte file, gzipped or not.

    Returns:
        Its contents, uint8. Shape: as the file says, e.g. (60000, 28, 28) or (60000,).

    Raises:
        DataError: It cannot be read, or is not such a file.
    """
    try:
        with regular_file(path).open("rb") as file:
            gzipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if gzipped else path.open("rb") as file:
            zeros, kind, axes = struct.unpack(">HBB", file.read(4))
            if zeros or kind != UBYTE or not axes:
                message = "this is not an idx file of unsigned bytes"
                raise DataError(message, str(path))
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
            size = math.prod(shape)
            room = path.stat().st_size * (DEFLATES if gzipped else 1)
            if size > room:
                message = f"the file says it holds {shape} = {size} bytes; it is too short for that"
                raise DataError(message, str(path))
            content = file.read(size + 1)
    except (OSError, EOFError, struct.error, zlib.error) as error:
        message = f"cannot be read as an idx file: {error}"
        raise DataError(message, str(path)) from error
    if len(content) != size:
        more = "more than that" if len(content) > size else str(len(content))
        message = f"the file says it holds {shape} = {size} bytes, but holds {more}"
        raise DataError(message, str(path))
    try:
        return np.frombuffer(content, np.uint8).reshape(shape)
    except ValueError as error:  # no values, but axes too long all the same
        raise DataError(str(error), str(path)) from error


def read_mnist(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the images and labels of one split.

    Args:
        folder: Where the four files are, under their usual names.
        split: ``"train"`` or ``"test"``.

    Returns:
        Images (N, 28, 28) and labels (N,), uint8.

    Raises:
        DataError: A file is missing or damaged, or the two do not belong together.
    """
    return _read_pair(*(_find(folder, SPLITS[split], names) for names in KINDS))


def convert_files(
    images: Path, labels: Path, out: Path, *, overwrite: bool = False, backend: str = "LMDB"
) -> int:
    """Make a database of a file of images and one of labels.

    Args:
        images: The images, gzipped or not.
        labels: The labels.
        out: The folder to make.
        overwrite: Whether to replace a database that is there.
        backend: ``"LMDB"`` or ``"LEVELDB"``.

    Returns:
        How many records it holds.

    Raises:
        DataError: A file is missing or damaged, or a database is there already.
    """
    records = _records(*_read_pair(images, labels))
    return write_database(out, records, overwrite=overwrite, backend=backend)


def convert_pairs(
    images: Path,
    labels: Path,
    out: Path,
    seed: int = 0,
    *,
    overwrite: bool = False,
    backend: str = "LEVELDB",
) -> int:
    """Make a database of pairs of images, as many as there are images, drawn at random.

    The two images of a pair are its channels; its label is 1 where theirs are the same, else 0.

    Args:
        images: The images, gzipped or not.
        labels: The labels.
        out: The folder to make.
        seed: What the pairs depend on.
        overwrite: Whether to replace a database that is there.
        backend: ``"LMDB"`` or ``"LEVELDB"``.

    Returns:
        How many records it holds.

    Raises:
        DataError: A file is missing or damaged, or a database is there already.
    """
    pixels, classes = _read_pair(images, labels)
    drawn = np.random.default_rng(seed).integers(len(pixels), size=(len(pixels), 2))
    records = ((pixels[pair], int(classes[pair[0]] == classes[pair[1]])) for pair in drawn)
    return write_database(out, records, overwrite=overwrite, backend=backend)


def _read_pair(image_file: Path, label_file: Path) -> tuple[np.ndarray, np.ndarray]:
    images, labels = read_idx(image_file), read_idx(label_file)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        message = f"{images.shape} images and {labels.shape} labels do not belong together"
        raise DataError(message, str(image_file.parent))
    return images, labels


def convert(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    backend: str = "LMDB",
) -> dict[Path, int]:
    """Make ``mnist_train_lmdb`` and ``mnist_test_lmdb``, or the same as LevelDBs.

    Args:
        folder: Where the four files are, gzipped or not.
        out: Folder to write to; the same one by default.
        overwrite: Whether to replace databases that are there.
        backend: ``"LMDB"`` or ``"LEVELDB"``.

    Returns:
        For each database that was written, how many records it holds.

    Raises:
        DataError: A file is missing or damaged, or a database is there already.
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
    message = f"there is none of {', '.join(names)} in this folder"
    raise DataError(message, str(folder))
