"""Read binary messages, and say what a file is that is none.

Source: Caffe, ``src/caffe/util/io.cpp`` (ReadProtoFromBinaryFile).
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from google.protobuf.message import DecodeError, Message

from demitasse.core.paths import read_failure, regular_file
from demitasse.errors import DemitasseError, WeightsError
from demitasse.io.proto.caffe_pb2 import NetParameter, SolverState
from demitasse.io.proto.strings import mend_strings
from demitasse.io.proto.zero_copy.wire import LARGEST

__all__ = ["bytes_of_file", "mapped_file", "parsed", "read_binary"]

M = TypeVar("M", bound=Message)

ITER = b"\x08"  # tag of the first field of a solver state
# How files begin that often turn up under the name of a caffemodel.
DISGUISES = {
    b"\x89HDF\r\n\x1a\n": "it is an HDF5 file: name it .h5 or .caffemodel.h5",
    b"version https://git-lfs": "it is a Git LFS pointer: fetch the real file with `git lfs pull`",
    b"<!DOCTYPE": "it is a web page: the download went wrong",
    b"<html": "it is a web page: the download went wrong",
    b"PK\x03\x04": "it is a ZIP archive: unpack it",
    b"\x1f\x8b": "it is a gzip archive: unpack it",
}


def read_binary(
    path: str | os.PathLike[str], cls: type[M], error: type[DemitasseError] = WeightsError
) -> M:
    r"""Read a message from a file in protobuf's binary encoding.

    No more memory is taken than the file's size calls for, whatever the file claims. Strings that
    are no UTF-8 have those bytes as ``\xNN``.

    Args:
        path: The file.
        cls: The message class.
        error: The exception class to raise.

    Raises:
        DemitasseError: As ``error``: the file is not there, empty, damaged or not such a message.
    """
    return parsed(bytes_of_file(path, error), cls, path, error)


def bytes_of_file(path: str | os.PathLike[str], error: type[DemitasseError]) -> bytes:
    """The contents of a file that is not empty and not larger than protobuf can read."""
    try:
        return _bytes(Path(path))
    except OSError as fault:
        raise error(read_failure(fault, path)).at(os.fspath(path)) from fault
    except ValueError as fault:
        raise error(str(fault)).at(os.fspath(path)) from None


def mapped_file(path: str | os.PathLike[str], error: type[DemitasseError]) -> mmap.mmap | bytes:
    """The same, read where it lies in the system's cache; copied where that cannot be."""
    with suppress(OSError, ValueError), regular_file(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size <= LARGEST:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return bytes_of_file(path, error)  # or says what is wrong


def parsed(
    encoded: bytes,
    cls: type[M],
    path: str | os.PathLike[str],
    error: type[DemitasseError],
    whole: mmap.mmap | bytes | None = None,
) -> M:
    """The message in the contents of a file; ``whole`` are all of them, for messages."""
    name = os.fspath(path)
    message = cls()
    try:
        message.ParseFromString(encoded)
    except DecodeError as fault:
        raise error(_why(encoded if whole is None else bytes(whole), cls)).at(name) from fault
    mend_strings(message)
    if not message.IsInitialized():
        missing = ", ".join(cast(Any, message).FindInitializationErrors())
        reason = f"required fields are missing: {missing}"
        raise error(reason).at(name)
    return message


def _bytes(path: Path) -> bytes:
    size = regular_file(path).stat().st_size
    if size > LARGEST:
        message = f"{size} bytes are more than a protobuf file may have (2 GiB)"
        raise ValueError(message)
    encoded = path.read_bytes()
    if not encoded:
        message = "the file is empty (0 bytes)"
        raise ValueError(message)
    return encoded


def _why(encoded: bytes, cls: type[Message]) -> str:
    for start, meaning in DISGUISES.items():
        if encoded.lstrip()[: len(start)].lower() == start.lower():
            return meaning
    if b"\0" not in encoded[:4096] and b"{" in encoded[:4096]:
        return "it is text, not binary; are two arguments swapped?"
    state = _state(encoded)
    if cls is NetParameter and state is not None:
        named = f" ({state.learned_net})" if state.learned_net else ""
        return f"this is the state of a solver, not weights: give the .caffemodel beside it{named}"
    return (
        f"the {len(encoded)} bytes are not a complete {cls.__name__}: "
        "the file is cut short, damaged or of another kind"
    )


def _state(encoded: bytes) -> SolverState | None:
    """The solver state that bytes are, if they begin with its first field and can be read."""
    state = SolverState()
    try:
        state.ParseFromString(encoded if encoded[:1] == ITER else b"")
    except DecodeError:
        return None
    return state if state.HasField("iter") else None
