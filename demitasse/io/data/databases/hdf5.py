"""HDF5 files: rows of the data sets of one, and a place to put rows.

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

from demitasse.core.paths import read_failure, read_text, regular_file
from demitasse.errors import DataError, DemitasseError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = [
    "Hdf5File",
    "Hdf5Writer",
    "SteadyFile",
    "array_of",
    "damage",
    "member",
    "need_room",
    "open_file",
    "read_list",
]

BLOCK = 64 << 20
"""How much of a file that is read in order is held at once, in bytes."""

DEFLATES = 1032
"""How many bytes one byte of a compressed file can be at most."""

LINKS = 16
"""How many links may follow one another on the way to a data set."""


def read_list(source: Path) -> list[str]:
    """Return the file names in a list, separated by white space.

    Raises:
        DataError: It cannot be read, or names no file.
    """
    try:
        names = read_text(source).split()
    except OSError as error:
        message = f"the list of HDF5 files cannot be read: {read_failure(error, source)}"
        raise DataError(message, str(source)) from error
    except ValueError as error:
        raise DataError(str(error), str(source)) from error
    if not names:
        message = "the list names no HDF5 file; it needs the path of one in every line"
        raise DataError(message, str(source))
    return names


def open_file(path: Path) -> Any:
    """Open an HDF5 file for reading.

    Raises:
        DataError: h5py is not installed, or this is no HDF5 file.
    """
    h5py = _h5py(path)
    try:
        return h5py.File(regular_file(path), "r")
    except OSError as error:
        message = f"cannot be opened as an HDF5 file: {error}"
        raise DataError(message, str(path)) from error


def _h5py(path: Path) -> ModuleType:
    try:
        import h5py
    except ImportError:
        message = "HDF5 files need h5py; run: pip install 'demitasse[hdf5]'"
        raise DataError(message, str(path)) from None
    return h5py  # type: ignore[no-any-return]


class SteadyFile(io.RawIOBase):
    """An open file for the HDF5 library, which may end the process where a write fails.

    The library is told that all went well; ``check`` tells what did not.

    Args:
        file: Open for writing and reading; it is closed with this one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the first error of a write; what is in the file then is of no use.

        Raises:
            OSError: As the system said it.
        """
        if self._error is not None:
            raise self._error

    def write(self, content: ReadableBuffer) -> int:
        """Write bytes where the file stands."""
        with self._going_on():
            self._file.write(content)
        return memoryview(content).nbytes

    def truncate(self, size: int | None = None) -> int:
        """Cut the file off, or fill it up with zeros."""
        with self._going_on():
            self._file.truncate(size)
        return self.tell() if size is None else size

    def flush(self) -> None:
        """Hand everything to the system; of a file that is closed, nothing is left."""
        if self._file.closed:  # the interpreter flushes once more what it throws away
            return
        with self._going_on():
            self._file.flush()

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        """Go to another place; what was written before may come to be written now."""
        with self._going_on():
            return self._file.seek(place, whence)
        return place

    def tell(self) -> int:
        """Return where the file stands, in bytes."""
        return self._file.tell()

    def readinto(self, into: WriteableBuffer) -> int:
        """Read bytes from where the file stands."""
        content = self._file.read(memoryview(into).nbytes)
        memoryview(into).cast("B")[: len(content)] = content
        return len(content)

    def close(self) -> None:
        """Close the file.

        Raises:
            OSError: What was left cannot be written.
        """
        super().close()
        self._file.close()

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._error = self._error or error


@contextmanager
def damage(path: Path, error: type[DemitasseError] = DataError) -> Iterator[None]:
    """Turn what h5py raises for a damaged file into an error of ours that names the file."""
    try:
        yield
    except DemitasseError:
        raise
    except (
        OSError,
        RuntimeError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        DecodeError,
    ) as fault:
        message = f"the HDF5 file is damaged: {fault}"
        raise error(message).at(str(path)) from fault


def member(group: Any, name: str, *, links: int = LINKS) -> Any:
    """Return what a path inside an HDF5 file leads to, or None; no other file is opened.

    Args:
        group: Where the path begins, unless with ``/``.
        name: The path.
        links: How many soft links may be followed.

    Raises:
        ValueError: The path leads to another file, or through too many links.
    """
    here = group.file if name.startswith("/") else group
    for part in filter(None, name.split("/")):
        link: Any = here.get(part, getlink=True) if hasattr(here, "visititems") else None
        if hasattr(link, "filename"):
            message = (
                f"{here.name.rstrip('/')}/{part} is a link to the file {link.filename!r}; "
                "store the array itself"
            )
            raise ValueError(message)
        if hasattr(link, "path"):
            if not links:
                message = f"{name} leads through more than {LINKS} links"
                raise ValueError(message)
            here = member(here, link.path, links=links - 1)
        else:
            here = None if link is None else here.get(part)
    return here


def array_of(dataset: Any) -> np.ndarray:
    """Return all values of a data set.

    Raises:
        ValueError: It is no data set, is kept in other files, or says it has more values than its
            file has room for.
    """
    need_room(dataset)
    return np.asarray(dataset[()])


def need_room(dataset: Any) -> None:
    """Refuse a data set that is kept in other files, or has more values than its file has room for.

    Raises:
        ValueError: Says which of them.
    """
    if not hasattr(dataset, "chunks"):
        message = f"{dataset.name} is no data set"
        raise ValueError(message)
    if dataset.is_virtual or dataset.external:  # before its shape, which may depend on those files
        message = (
            f"{dataset.name} takes its values from other files, "
            f"{'as a virtual data set' if dataset.is_virtual else 'by external storage'}; "
            "store the array itself"
        )
        raise ValueError(message)
    room = dataset.file.id.get_filesize() * (1 if dataset.chunks is None else DEFLATES)
    if dataset.nbytes > room:
        message = f"{dataset.name} {dataset.shape} has more values than the file has room for"
        raise ValueError(message)
    chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
    if chunk > max(room, BLOCK):  # a value alone needs a whole one in memory
        message = f"{dataset.name} is in chunks of {chunk} bytes, which the file has no room for"
        raise ValueError(message)


class Hdf5File:
    """The rows of the data sets of one file.

    Args:
        path: The file.
        names: Data sets wanted, one for each top.
        whole: Whether to read them completely, for visits in any order.

    Attributes:
        rows: How many there are.

    Raises:
        DataError: A data set is missing, is no array of rows, or has not as many as the first.
    """

    def __init__(self, path: Path, names: Sequence[str], *, whole: bool = False) -> None:
        self.path, self._file = path, open_file(path)
        try:
            with damage(path):
                self._sets = [self._numbers(name) for name in names]
            self.rows = int(self._sets[0].shape[0])
            for name, one in zip(names, self._sets, strict=True):
                if one.shape[0] != self.rows:
                    message = f"{name!r} has {one.shape[0]} rows, {names[0]!r} has {self.rows}"
                    raise DataError(message, str(path))
            if not self.rows:
                message = f"{names[0]!r} has no rows"
                raise DataError(message, str(path))
            self.shapes = [one.shape[1:] for one in self._sets]
            row = sum(one.dtype.itemsize * int(np.prod(one.shape[1:])) for one in self._sets)
            self._block = self.rows if whole else max(1, BLOCK // max(1, row))
            self._begin, self._held = 0, list[np.ndarray]()
        except BaseException:
            self.close()
            raise

    def row(self, index: int) -> list[np.ndarray]:
        """Return one row of every data set.

        Raises:
            DataError: The file is damaged there.
        """
        first, held = self.block(index)
        return [array[index - first] for array in held]

    def block(self, index: int) -> tuple[int, list[np.ndarray]]:
        """Return the rows that are read together with one.

        Returns:
            The number of the first of them, and the rows of every data set.

        Raises:
            DataError: The file is damaged there.
        """
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
            message = f"there is no data set {name!r}; there are {', '.join(self._file) or 'none'}"
            raise DataError(message, str(self.path))
        need_room(one)
        if one.dtype.kind not in "fiub" or not one.shape:
            message = f"data set {name!r} {one.shape} of {one.dtype} is not made of rows of numbers"
            raise DataError(message, str(self.path))
        return one


class Hdf5Writer:
    """Appends rows to the data sets of a new file; goes on after ``close`` where it was.

    Args:
        path: The file; one that is there is replaced.

    Raises:
        DataError: It cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._open("w")
        except OSError as error:
            message = f"cannot be opened as an HDF5 file: {error.strerror or error}"
            raise DataError(message, str(path)) from error

    def _open(self, mode: Literal["w", "r+"]) -> None:
        h5py = _h5py(self.path)
        with suppress(FileNotFoundError):
            regular_file(self.path)
        self._steady = SteadyFile(self.path.open("w+b" if mode == "w" else "r+b"))
        self._file = h5py.File(self._steady, mode)

    def append(self, **batches: np.ndarray) -> None:
        """Append rows to data sets, and make sure that they are in the file.

        Raises:
            DataError: Rows have another shape than those before.
            OSError: They cannot be written, e.g. because the disk is full.
        """
        if not self._file:  # closed
            self._open("r+")
        try:
            for name, batch in batches.items():
                self._append(name, batch)
            self._file.flush()
            self._steady.check()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def _append(self, name: str, batch: np.ndarray) -> None:
        if name not in self._file:
            room = (None, *batch.shape[1:])
            self._file.create_dataset(name, data=batch, maxshape=room, chunks=True)
            return
        stored = self._file[name]
        if stored.shape[1:] != batch.shape[1:]:
            message = f"rows of {name!r} are {stored.shape[1:]}, these are {batch.shape[1:]}"
            raise DataError(message, str(self.path))
        begin = stored.shape[0]
        stored.resize(begin + batch.shape[0], axis=0)
        stored[begin:] = batch

    def close(self) -> None:
        """Close the file.

        Raises:
            OSError: The last rows cannot be written.
        """
        self._file.close()
        self._steady.close()
