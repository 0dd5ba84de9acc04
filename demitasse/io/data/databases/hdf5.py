"""HDF5 files: rows of data sets, and a writer that appends rows.

h5py is imported when the first file is opened.

Source: Caffe, ``src/caffe/util/hdf5.cpp``.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from google.protobuf.message import DecodeError

from demitasse.core.extras import needs_extra
from demitasse.core.paths import regular_file, resolve_path
from demitasse.errors import ConfigError, DataError, DemitasseError, ErrorCode
from demitasse.io.data.databases.database import DEFLATES, check, check_memory, memory_limit
from demitasse.io.data.redaction import quoted, read_list_file

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

BLOCK = 64 << 20  # bytes of a block for sequential reading

LINKS = 16  # largest number of soft links on the way to a data set


def read_list(source: Path, base_dir: Path | None = None) -> list[Path]:
    """Return the files in a list of names, separated by white space."""
    names = read_list_file(source, "list of HDF5 files").split()
    if not names:
        message = "the list names no HDF5 file; write one path per line"
        raise DataError(message, str(source), code=ErrorCode.MISSING)
    paths = []
    for number, name in enumerate(names, 1):
        try:
            path = resolve_path(name, base_dir)
        except ConfigError:  # an impossible file name
            path = None
        if path is None or quoted(name, number, path) != name:
            message = f"entry {number} names no file; list paths of HDF5 files"
            raise DataError(message, str(source), code=ErrorCode.INVALID, index=number)
        paths.append(path)
    return paths


def _h5py(path: Path) -> ModuleType:
    with needs_extra(DataError, "an HDF5 file", "h5py", "hdf5", source=str(path)):
        import h5py
    return h5py  # type: ignore[no-any-return]


class ErrorRecordingFile(io.RawIOBase):
    """File object that hides write errors from the HDF5 library, which may abort the process."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the first error of a write; the file is unusable then."""
        if self._error is not None:
            raise self._error

    def write(self, content: ReadableBuffer) -> int:
        """Write bytes at the current position."""
        with self._recording_errors():
            self._file.write(content)
        return memoryview(content).nbytes

    def truncate(self, size: int | None = None) -> int:
        """Truncate the file, or extend it with zeros."""
        with self._recording_errors():
            self._file.truncate(size)
        return self.tell() if size is None else size

    def flush(self) -> None:
        """Flush written bytes to the system; a no-op for a closed file."""
        if self._file.closed:  # the interpreter flushes deleted files once more
            return
        with self._recording_errors():
            self._file.flush()

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        """Set the position; buffered bytes may be written first."""
        with self._recording_errors():
            return self._file.seek(place, whence)
        return place

    def tell(self) -> int:
        """Return the current position, in bytes."""
        return self._file.tell()

    def readinto(self, into: WriteableBuffer) -> int:
        """Read bytes at the current position."""
        content = self._file.read(memoryview(into).nbytes)
        memoryview(into).cast("B")[: len(content)] = content
        return len(content)

    def close(self) -> None:
        """Close the file; an OSError if buffered bytes cannot be written."""
        super().close()
        self._file.close()

    @contextmanager
    def _recording_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._error = self._error or error


DAMAGE = (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, DecodeError)
"""Exceptions of h5py for damaged files."""


class _OtherFileError(ValueError):
    """A path or data set leads to another file."""


@contextmanager
def damage(path: Path, error: type[DemitasseError] = DataError) -> Iterator[None]:
    """Convert exceptions of h5py for a damaged file to a DemitasseError that names the file."""
    try:
        yield
    except DemitasseError:
        raise
    except DAMAGE as fault:
        message = f"the HDF5 file is damaged: {fault}"
        other = isinstance(fault, _OtherFileError)
        code = ErrorCode.UNTRUSTED if other else ErrorCode.CORRUPT
        raise error(message, code=code).at(str(path)) from fault


def member(group: Any, name: str, *, links: int = LINKS) -> Any:
    """Return the object at a path inside an HDF5 file, or None; never opens another file."""
    here = group.file if name.startswith("/") else group
    for part in filter(None, name.split("/")):
        link: Any = here.get(part, getlink=True) if hasattr(here, "visititems") else None
        if hasattr(link, "filename"):
            message = (
                f"{here.name.rstrip('/')}/{part} is a link to the file {link.filename!r}; "
                "store the array itself"
            )
            raise _OtherFileError(message)
        if hasattr(link, "path"):
            check(links > 0, f"{name} leads through more than {LINKS} links")
            here = member(here, link.path, links=links - 1)
        else:
            here = None if link is None else here.get(part)
    return here


def array_of(dataset: Any) -> np.ndarray:
    """Return all values of a data set; see ``arrays_of``."""
    return arrays_of([dataset])[0]


def arrays_of(datasets: Sequence[Any]) -> list[np.ndarray]:
    """Return all values of data sets of one file.

    Data sets that lie in other files, or take far more memory than their file, are a ValueError.
    """
    for one in datasets:
        _check_dataset(one)
    _check_total(datasets)
    return [np.asarray(one[()]) for one in datasets]


def _check_total(datasets: Sequence[Any]) -> None:
    """Refuse data sets of one file that take far more memory than the file has bytes."""
    if not datasets:
        return
    more = f" and {len(datasets) - 1} more" if len(datasets) > 1 else ""
    total, size = sum(one.nbytes for one in datasets), datasets[0].file.id.get_filesize()
    check_memory(f"{datasets[0].name}{more}", total, size)


def _check_dataset(dataset: Any) -> None:
    """Refuse a data set that is stored in other files, or is larger than its file can hold."""
    check(hasattr(dataset, "chunks"), f"{dataset.name} is no data set")
    if dataset.is_virtual or dataset.external:  # first: the shape may depend on those files
        message = (
            f"{dataset.name} takes its values from other files, "
            f"{'as a virtual data set' if dataset.is_virtual else 'by external storage'}; "
            "store the array itself"
        )
        raise _OtherFileError(message)
    size = dataset.file.id.get_filesize()
    most = size * (1 if dataset.chunks is None else DEFLATES)
    more = f"{dataset.name} {dataset.shape} has more values than the file has room for"
    check(dataset.nbytes <= most, more)
    # One value needs its whole chunk in memory.
    chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
    large = f"{dataset.name} is in chunks of {chunk} bytes, which the file has no room for"
    check(chunk <= memory_limit(size), large)


class Hdf5File:
    """Rows of the data sets of one file.

    Args:
        whole: Read whole data sets, for random access.

    Raises:
        DataError: A data set is missing, is no array of rows, or differs in its number of rows.
    """

    def __init__(self, path: Path, names: Sequence[str], *, whole: bool = False) -> None:
        self.path = path
        h5py = _h5py(path)
        try:
            self._file = h5py.File(regular_file(path), "r")
        except OSError as error:
            message = f"cannot be opened as an HDF5 file: {error}"
            raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error
        try:
            with damage(path):
                self._sets = [self._numbers(name) for name in names]
                if whole:
                    _check_total(self._sets)
            self.rows = int(self._sets[0].shape[0])
            for name, one in zip(names, self._sets, strict=True):
                got, expected, code = one.shape[0], self.rows, ErrorCode.COUNT_MISMATCH
                if got != expected:
                    message = f"{name!r} has {got} rows, {names[0]!r} has {expected}"
                    raise DataError(
                        message, str(path), code=code, field=name, got=got, expected=expected
                    )
            if not self.rows:
                message = f"{names[0]!r} has no rows"
                raise DataError(message, str(path), code=ErrorCode.MISSING, field=names[0])
            self.shapes = [one.shape[1:] for one in self._sets]
            row = sum(one.dtype.itemsize * int(np.prod(one.shape[1:])) for one in self._sets)
            self._block = self.rows if whole else max(1, BLOCK // max(1, row))
            self._begin, self._held = 0, list[np.ndarray]()
        except BaseException:
            self.close()
            raise

    def row(self, index: int) -> list[np.ndarray]:
        """Return one row of every data set."""
        first, held = self.block(index)
        return [array[index - first] for array in held]

    def block(self, index: int) -> tuple[int, list[np.ndarray]]:
        """Return the number of the first row of a row's block, and the rows of the block."""
        if not self._held or not 0 <= index - self._begin < len(self._held[0]):
            self._begin = index - index % self._block
            part = slice(self._begin, self._begin + self._block)
            with damage(self.path):
                self._held = [one[part] for one in self._sets]
        return self._begin, self._held

    def close(self) -> None:
        """Close the file."""
        self._held = []
        self._file.close()

    def _numbers(self, name: str) -> Any:
        one = member(self._file, name)
        if one is None or not hasattr(one, "dtype"):
            message = f"there is no data set {name!r}; found {', '.join(self._file) or 'none'}"
            raise DataError(message, str(self.path), code=ErrorCode.NOT_FOUND, field=name)
        _check_dataset(one)
        if one.dtype.kind not in "fiub" or not one.shape:
            message = f"data set {name!r} {one.shape} of {one.dtype} has no rows of numbers"
            code, got = ErrorCode.DTYPE_MISMATCH, str(one.dtype)
            raise DataError(message, str(self.path), code=code, field=name, got=got)
        return one


class Hdf5Writer:
    """Append rows to the data sets of a new file; reopens the file after ``close``.

    The first rows replace an existing file. A DataError if the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mode: Literal["w", "r+"] = "w"
        self._file: Any = None
        _h5py(path)
        try:
            if path.exists():  # rows of an earlier run, until there are others
                regular_file(path).open("r+b").close()
            else:
                self._open()
        except OSError as error:
            message = f"cannot be opened as an HDF5 file: {error.strerror or error}"
            raise DataError(message, str(path), code=ErrorCode.UNWRITABLE) from error

    def _open(self) -> None:
        with suppress(FileNotFoundError):
            regular_file(self.path)
        self._recording = ErrorRecordingFile(self.path.open("w+b" if self._mode == "w" else "r+b"))
        self._file = _h5py(self.path).File(self._recording, self._mode)
        self._mode = "r+"

    def append(self, **batches: np.ndarray) -> None:
        """Append rows of the same shape as before, and flush the file.

        Another shape is a DataError, a full disk an OSError.
        """
        if not self._file:  # closed, or not opened yet
            self._open()
        try:
            for name, batch in batches.items():
                self._append(name, batch)
            self._file.flush()
            self._recording.check()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def _append(self, name: str, batch: np.ndarray) -> None:
        if name not in self._file:
            limit = (None, *batch.shape[1:])
            self._file.create_dataset(name, data=batch, maxshape=limit, chunks=True)
            return
        stored = self._file[name]
        got, expected, code = batch.shape[1:], stored.shape[1:], ErrorCode.SHAPE_MISMATCH
        if got != expected:
            message = f"got rows of {name!r} {got}, expected {expected}"
            raise DataError(
                message, str(self.path), code=code, field=name, got=got, expected=expected
            )
        begin = stored.shape[0]
        stored.resize(begin + batch.shape[0], axis=0)
        stored[begin:] = batch

    def close(self) -> None:
        """Close the file; an OSError if buffered rows cannot be written."""
        if self._file is not None:
            self._file.close()
            self._recording.close()
