"""Reading of binary messages, and diagnosis of files that are none.

Caffe in C++ writes and reads strings of any bytes, e.g. names in GBK. protobuf for Python returns
such a string as bytes, which code for strings cannot use; these bytes are escaped.

Source: Caffe, ``src/caffe/util/io.cpp`` (ReadProtoFromBinaryFile).
"""

import os
import re
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from demitasse.core.paths import code_of, read_failure, regular_file
from demitasse.errors import DemitasseError, ErrorCode, WeightsError
from demitasse.io.proto.caffe_pb2 import NetParameter, SolverState
from demitasse.io.proto.wire_format import LARGEST, memory_cost, memory_limit

M = TypeVar("M", bound=Message)

BLOCK = 1 << 16  # bytes that are read at a time while the fields of a message are searched


def escape_invalid_utf8(message: Message) -> int:
    r"""Replace bytes of strings that are not UTF-8 by ``\xNN``, in place; return their number."""
    count = 0
    field: Any
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if isinstance(value, bytes):
                setattr(message, field.name, _escaped(value))
                count += 1
            elif not isinstance(value, str):
                for index, one in enumerate(value):
                    if isinstance(one, bytes):
                        value[index] = _escaped(one)
                        count += 1
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = (value,) if isinstance(value, Message) else value
            count += sum(map(escape_invalid_utf8, inner))
    return count


def _escaped(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


NEVER_TOO_LARGE = 1 << 14  # bytes of a file whose messages need not be counted

ITER = b"\x08"  # tag of the first field of a solver state


# First bytes of files that often have the name of a caffemodel.
DISGUISES = {
    b"\x89HDF\r\n\x1a\n": "it is an HDF5 file: name it .h5 or .caffemodel.h5",
    b"version https://git-lfs": "it is a Git LFS pointer: run `git lfs pull`",
    b"<!DOCTYPE": "it is a web page: the download failed",
    b"<html": "it is a web page: the download failed",
    b"PK\x03\x04": "it is a ZIP archive: unpack it, or run `demitasse weights import` if "
    "it is PyTorch's",
    b"\x1f\x8b": "it is a gzip archive: unpack it",
}


def read_binary(
    path: str | os.PathLike[str], cls: type[M], error: type[DemitasseError] = WeightsError
) -> M:
    r"""Read a message from a file in protobuf's binary encoding.

    Memory use is bounded by the size of the file, whatever its contents. Bytes of strings that are
    not UTF-8 become ``\xNN``.

    Raises:
        DemitasseError: As ``error``: the file does not exist, or is empty, damaged or no such
            message.
    """
    return parsed(bytes_of_file(path, error), cls, path, error)


def bytes_of_file(path: str | os.PathLike[str], error: type[DemitasseError]) -> bytes:
    """Return the contents of a file; refuse empty files and files too large for protobuf."""
    try:
        size, encoded = regular_file(path).stat().st_size, b""
        if size <= LARGEST:
            encoded = Path(path).read_bytes()
            size = len(encoded)
    except OSError as fault:
        raise error(read_failure(fault, path), code=code_of(fault)).at(os.fspath(path)) from fault
    _check_size(size, path, error)
    return encoded


class OpenFile:
    """An open file, not mapped: a mapped file that is cut short ends the process by SIGBUS."""

    def __init__(self, path: str | os.PathLike[str], error: type[DemitasseError]) -> None:
        self._error = error
        file = regular_file(path).open("rb", buffering=0)
        weakref.finalize(self, file.close)
        self._file = file
        self._opened = self._version()
        self.size = self._opened[0]
        self._first, self._block = 0, b""

    def byte(self, at: int) -> int:
        """Return one byte."""
        if not 0 <= at - self._first < len(self._block):
            self._first = at - at % BLOCK
            self._block = self.read(self._first, min(BLOCK, self.size - self._first))
        return self._block[at - self._first]

    def read(self, first: int, count: int) -> bytes:
        """Return some bytes."""
        content = bytearray(count)
        self.read_into(first, memoryview(content))
        return bytes(content)

    def read_into(self, first: int, target: memoryview) -> None:
        """Fill a buffer with bytes; refuse a file that ends before."""
        done = 0
        try:
            self._file.seek(first)
            while done < len(target) and (count := self._file.readinto(target[done:])):
                done += count
        except OSError as fault:
            raise self._error(str(fault), code=ErrorCode.UNREADABLE) from fault
        if done < len(target):
            text = f"the file was cut short at byte {first + done} while it was read"
            raise self._error(text, code=ErrorCode.TRUNCATED)

    def check_unchanged(self) -> None:
        """Refuse a file whose size or time of change differs from those at its opening."""
        if self._version() != self._opened:
            message = "the file was changed while it was read; read it again"
            raise self._error(message, code=ErrorCode.CORRUPT)

    def _version(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns


class FileView:
    """Bytes ``first`` to ``end`` of an open file, which are read when they are used."""

    def __init__(self, file: OpenFile, first: int, end: int) -> None:
        self.file, self.first, self.end = file, first, end

    def __len__(self) -> int:
        return self.end - self.first

    def __getitem__(self, at: int) -> int:
        if at >= len(self):
            raise IndexError(at)
        return self.file.byte(self.first + at)

    def part(self, begin: int, end: int | None = None) -> "FileView":
        """Return a view of some bytes, by default to the end."""
        stop = self.end if end is None else self.first + end
        return FileView(self.file, self.first + begin, stop)

    def read(self) -> bytes:
        """Return the bytes."""
        return self.file.read(self.first, len(self))


def open_binary(path: str | os.PathLike[str], error: type[DemitasseError]) -> FileView:
    """Return a view of a file; refuse what ``bytes_of_file`` refuses."""
    try:
        file = OpenFile(path, error)
    except OSError as fault:
        raise error(read_failure(fault, path), code=code_of(fault)).at(os.fspath(path)) from fault
    _check_size(file.size, path, error)
    return FileView(file, 0, file.size)


def parsed(
    encoded: bytes, cls: type[M], path: str | os.PathLike[str], error: type[DemitasseError],
    whole: FileView | None = None,
) -> M:  # fmt: skip
    """Parse the contents of a file; ``whole`` is the complete contents, for error messages."""
    name = os.fspath(path)
    message = cls()
    check_memory_cost(encoded, cls, path, error, len(encoded if whole is None else whole))
    try:
        message.ParseFromString(encoded)
    except DecodeError as fault:
        reason = _why(encoded if whole is None else whole.read(), cls)
        raise error(reason, code=ErrorCode.UNREADABLE).at(name) from fault
    escape_invalid_utf8(message)
    if not message.IsInitialized():
        missing = ", ".join(cast(Any, message).FindInitializationErrors())
        reason = f"required fields are missing: {missing}"
        raise error(reason, code=ErrorCode.MISSING, field=missing).at(name)
    return message


def check_memory_cost(
    encoded: bytes, cls: type[Message], path: str | os.PathLike[str], error: type[DemitasseError],
    size: int | None = None,
) -> None:  # fmt: skip
    """Refuse a message whose (almost) empty messages take far more memory than its file."""
    most = memory_limit(len(encoded) if size is None else size)
    if len(encoded) > NEVER_TOO_LARGE and memory_cost(encoded, cls.DESCRIPTOR, most) > most:
        message = (
            f"got {len(encoded)} bytes whose (almost) empty messages take more than "
            f"{most >> 20} MiB of memory, expected a {cls.__name__}; the file is damaged"
        )
        raise error(message, code=ErrorCode.LIMIT, got=len(encoded)).at(os.fspath(path))


def parse_message(encoded: bytes, cls: type[M]) -> M:
    """Return a message of bytes, checked as those of a file, or raise DecodeError."""
    try:
        check_memory_cost(encoded, cls, cls.__name__, WeightsError)
    except WeightsError as fault:
        raise DecodeError(str(fault)) from None
    return cls.FromString(encoded)


def _check_size(size: int, path: str | os.PathLike[str], error: type[DemitasseError]) -> None:
    """Refuse an empty file, and a file beyond the limit of protobuf."""
    if not 0 < size <= LARGEST:
        reason = f"got {size} bytes, expected at most 2 GiB, the limit of protobuf"
        reason = reason if size else "the file is empty (0 bytes)"
        raise error(reason, code=ErrorCode.INVALID).at(os.fspath(path))


def _why(encoded: bytes, cls: type[Message]) -> str:
    """Return the reason why bytes are no message of this class."""
    for start, meaning in DISGUISES.items():
        if encoded.lstrip()[: len(start)].lower() == start.lower():
            return meaning
    head = encoded[:4096]
    if (b"{" in head or head.isascii()) and not re.search(rb"[\x00-\x08\x0e-\x1f]", head):
        return "it is text, not binary; are two arguments swapped?"
    if cls is NetParameter and encoded[:1] == ITER:
        with suppress(DecodeError):
            state = SolverState.FromString(encoded)
            named = f" ({state.learned_net})" if state.learned_net else ""
            return f"this is a solver state, not weights: give the .caffemodel beside it{named}"
    return (
        f"the {len(encoded)} bytes are no complete {cls.__name__}: "
        "the file is truncated, damaged or of another kind"
    )
