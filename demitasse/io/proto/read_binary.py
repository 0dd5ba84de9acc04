"""Reading of binary messages, and diagnosis of files that are none.

Caffe in C++ writes and reads strings of any bytes, e.g. names in GBK. protobuf for Python returns
such a string as bytes, which code for strings cannot use; these bytes are escaped.

Source: Caffe, ``src/caffe/util/io.cpp`` (ReadProtoFromBinaryFile).
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from demitasse.core.paths import code_of, read_failure, regular_file
from demitasse.errors import DemitasseError, ErrorCode, WeightsError
from demitasse.io.proto.caffe_pb2 import NetParameter, SolverState
from demitasse.io.proto.wire_format import LARGEST

M = TypeVar("M", bound=Message)


def escape_invalid_utf8(message: Message) -> int:
    r"""Replace bytes of a message's strings that are not UTF-8 by ``\xNN``, in place.

    Returns:
        Number of changed strings.
    """
    count = 0
    field: Any
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if isinstance(value, bytes):
                setattr(message, field.name, _escaped(value))
                count += 1
            elif not isinstance(value, str):
                count += _escape_each(value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = (value,) if isinstance(value, Message) else value
            count += sum(map(escape_invalid_utf8, inner))
    return count


def _escape_each(values: Any) -> int:
    count = 0
    for index, value in enumerate(values):
        if isinstance(value, bytes):
            values[index] = _escaped(value)
            count += 1
    return count


def _escaped(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


ITER = b"\x08"  # tag of the first field of a solver state


# First bytes of files that often have the name of a caffemodel.
DISGUISES = {
    b"\x89HDF\r\n\x1a\n": "it is an HDF5 file: name it .h5 or .caffemodel.h5",
    b"version https://git-lfs": "it is a Git LFS pointer: run `git lfs pull`",
    b"<!DOCTYPE": "it is a web page: the download failed",
    b"<html": "it is a web page: the download failed",
    b"PK\x03\x04": "it is a ZIP archive: unpack it",
    b"\x1f\x8b": "it is a gzip archive: unpack it",
}


def read_binary(
    path: str | os.PathLike[str], cls: type[M], error: type[DemitasseError] = WeightsError
) -> M:
    r"""Read a message from a file in protobuf's binary encoding.

    Memory use is bounded by the size of the file, whatever its contents. Bytes of strings that are
    not UTF-8 become ``\xNN``.

    Args:
        path: The file.
        cls: The message class.
        error: Class of raised errors.

    Raises:
        DemitasseError: As ``error``: the file does not exist, or is empty, damaged or no such
            message.
    """
    return parsed(bytes_of_file(path, error), cls, path, error)


def bytes_of_file(path: str | os.PathLike[str], error: type[DemitasseError]) -> bytes:
    """Return the contents of a file; refuse empty files and files too large for protobuf."""
    try:
        return _bytes(Path(path))
    except OSError as fault:
        code = code_of(fault)
        raise error(read_failure(fault, path), code=code).at(os.fspath(path)) from fault
    except ValueError as fault:
        raise error(str(fault), code=ErrorCode.INVALID).at(os.fspath(path)) from None


def mapped_file(path: str | os.PathLike[str], error: type[DemitasseError]) -> mmap.mmap | bytes:
    """Return the contents of a file as a memory map, or as bytes if mapping fails."""
    with suppress(OSError, ValueError), regular_file(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size <= LARGEST:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return bytes_of_file(path, error)  # or raises the reason


def parsed(
    encoded: bytes,
    cls: type[M],
    path: str | os.PathLike[str],
    error: type[DemitasseError],
    whole: mmap.mmap | bytes | None = None,
) -> M:
    """Parse the contents of a file; ``whole`` is the complete contents, for error messages."""
    name = os.fspath(path)
    message = cls()
    try:
        message.ParseFromString(encoded)
    except DecodeError as fault:
        reason = _why(encoded if whole is None else bytes(whole), cls)
        raise error(reason, code=ErrorCode.UNREADABLE).at(name) from fault
    escape_invalid_utf8(message)
    if not message.IsInitialized():
        missing = ", ".join(cast(Any, message).FindInitializationErrors())
        reason = f"required fields are missing: {missing}"
        raise error(reason, code=ErrorCode.MISSING, field=missing).at(name)
    return message


def _bytes(path: Path) -> bytes:
    size = regular_file(path).stat().st_size
    if size > LARGEST:
        message = f"got {size} bytes, expected at most 2 GiB, the limit of protobuf"
        raise ValueError(message)
    encoded = path.read_bytes()
    if not encoded:
        message = "the file is empty (0 bytes)"
        raise ValueError(message)
    return encoded


def _why(encoded: bytes, cls: type[Message]) -> str:
    """Return the reason why bytes are no message of this class."""
    for start, meaning in DISGUISES.items():
        if encoded.lstrip()[: len(start)].lower() == start.lower():
            return meaning
    if b"\0" not in encoded[:4096] and b"{" in encoded[:4096]:
        return "it is text, not binary; are two arguments swapped?"
    state = _state(encoded)
    if cls is NetParameter and state is not None:
        named = f" ({state.learned_net})" if state.learned_net else ""
        return f"this is a solver state, not weights: give the .caffemodel beside it{named}"
    return (
        f"the {len(encoded)} bytes are no complete {cls.__name__}: "
        "the file is truncated, damaged or of another kind"
    )


def _state(encoded: bytes) -> SolverState | None:
    """Return the solver state in the bytes, or None."""
    state = SolverState()
    try:
        state.ParseFromString(encoded if encoded[:1] == ITER else b"")
    except DecodeError:
        return None
    return state if state.HasField("iter") else None
