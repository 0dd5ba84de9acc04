"""Ordered items for a net: image files, records of a database, or rows of arrays."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from demitasse.core.paths import is_file, is_folder, read_text
from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.data.databases.hdf5 import Hdf5File
from demitasse.io.data.images.codecs import IMAGES, Color, files_in, read_image
from demitasse.io.proto import Datum
from demitasse.io.weights.npz import arrays_in, read_npy

HDF5 = {".h5", ".hdf5"}
ARRAYS = {".npy", ".npz", *HDF5}


class Images:
    """Image files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.names = [str(path) for path in paths]
        self.files = list(paths)

    def pixels(self, index: int, color: Color) -> np.ndarray:
        """Return the pixels of an image, uint8. Shape: (C, H, W)."""
        return read_image(self.files[index], color)


class Records:
    """Records of a database, read sequentially from any record."""

    def __init__(self, path: Path, backend: str) -> None:
        self._path, self._database = path, open_db(path, backend)
        self._cursor, self._at = self._database.new_cursor(), 0
        self.names = [key.decode("utf-8", "replace") for key, _ in records(self._cursor)]
        self._cursor.seek_to_first()
        found = (one for one in path.iterdir() if one.suffix in {".mdb", ".ldb", ".sst"})
        self.files = sorted(one for one in found if one.name != "lock.mdb")

    def pixels(self, index: int, color: Color) -> np.ndarray:
        """Return the values of a record. Shape: (C, H, W)."""
        if index < self._at:
            self._cursor.seek_to_first()
            self._at = 0
        while self._at < index:
            self._cursor.next()
            self._at += 1
        place, name = str(self._path), self.names[index]
        try:
            array = datum_to_array(Datum.FromString(bytes(self._cursor.value())), color)
        except (ValueError, DataError) as error:  # protobuf's error is a ValueError
            message = getattr(error, "message", str(error))
            raise DataError(message, place, name, code=ErrorCode.CORRUPT) from None
        if not array.size:
            message = "the record has no values; a record must be a Datum, not an AnnotatedDatum"
            raise DataError(message, place, name, code=ErrorCode.CORRUPT)
        return array


class Arrays:
    """Rows of arrays, one for each input of a net, in a file ``.npy``, ``.npz`` or of HDF5."""

    def __init__(self, path: Path, inputs: Sequence[str]) -> None:
        self.files = [path]
        self._file: Hdf5File | None = None
        self._arrays: dict[str, np.ndarray] = {}
        self._inputs = list(inputs)
        if path.suffix in HDF5:
            self._file = Hdf5File(path, self._inputs)
            lengths = {self._file.rows}
        else:
            self._arrays = _read(path, self._inputs)
            single = next((name for name, one in self._arrays.items() if not one.ndim), None)
            if single is not None:
                message = f"the array for {single!r} is a single number and has no rows"
                raise DataError(message, str(path), code=ErrorCode.SHAPE_MISMATCH, blob=single)
            lengths = {len(array) for array in self._arrays.values()}
        if len(lengths) > 1:
            message = f"the arrays have {' and '.join(map(str, sorted(lengths)))} rows"
            raise DataError(message, str(path), code=ErrorCode.COUNT_MISMATCH, got=sorted(lengths))
        self.names = [str(index) for index in range(lengths.pop())]

    def rows(self, some: range) -> dict[str, np.ndarray]:
        """Return rows of the arrays. Shapes: (len(some), ...)."""
        if self._file is None:
            return {name: array[some.start : some.stop] for name, array in self._arrays.items()}
        rows = [self._file.row(index) for index in some]
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
        return dict(zip(self._inputs, columns, strict=True))


Items = Images | Records | Arrays


def find_items(names: Sequence[str], inputs: Sequence[str]) -> Items:
    """Return the items in files and folders; ``inputs`` are the net's, for arrays.

    Names are image files, folders of images, or lists (``.txt``) with one name per line; or one
    database, or one file of arrays.
    """
    paths = [Path(name) for name in names]
    kinds = [_backend(path) or path.suffix in ARRAYS for path in paths]
    if any(kinds):
        if len(paths) > 1:
            message = "a database or a file of arrays is the only input; give one, or images"
            raise ConfigError(message, code=ErrorCode.CONFLICT, field="inputs")
        backend = _backend(paths[0])
        return Records(paths[0], backend) if backend else Arrays(paths[0], inputs)
    found = [path for one in paths for path in _images(one)]
    if not found:
        message = f"{', '.join(names)}: there are no images"
        raise DataError(message, code=ErrorCode.NOT_FOUND)
    return Images(found)


def _images(path: Path) -> Iterator[Path]:
    if is_folder(path):
        yield from files_in(path, IMAGES)
    elif path.suffix == ".txt":
        yield from (Path(line) for line in read_text(path).splitlines() if line.strip())
    else:
        yield path


def _backend(path: Path) -> str:
    """Return the kind of a database; empty for other files."""
    if is_file(path / "data.mdb"):
        return "LMDB"
    return "LEVELDB" if is_file(path / "CURRENT") else ""


def _read(path: Path, inputs: Sequence[str]) -> dict[str, np.ndarray]:
    try:
        if path.suffix == ".npz":
            arrays = arrays_in(path)
        elif len(inputs) == 1:
            arrays = {inputs[0]: read_npy(path)}
        else:
            message = f"one array, but the net's inputs are {', '.join(inputs)}; give a .npz"
            raise DataError(message, str(path), code=ErrorCode.COUNT_MISMATCH)
    except (OSError, ValueError) as error:
        raise DataError(str(error), str(path), code=ErrorCode.UNREADABLE) from None
    if set(arrays) != set(inputs):
        message = f"the arrays are {', '.join(arrays)}; the net's inputs are {', '.join(inputs)}"
        raise DataError(message, str(path), code=ErrorCode.MISSING)
    return arrays
