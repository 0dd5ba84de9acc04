"""Writing of text and binary messages, atomically."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from google.protobuf import text_format
from google.protobuf.message import EncodeError, Message

from demitasse.core.atomic import atomic_write, write_bytes
from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto.wire_format import LARGEST

if TYPE_CHECKING:
    from hashlib import _Hash

Pieces = list[bytes | memoryview]
"""Parts of a message, in order; a memoryview is the memory of an array, as a row of bytes."""


def text_of(message: Message) -> str:
    """Return a message as prototxt, fields in the order of their numbers."""
    return text_format.MessageToString(message, use_index_order=False)


def write_text(path: str | os.PathLike[str], message: Message) -> None:
    """Write a message as prototxt, in UTF-8.

    Raises:
        OSError: The file cannot be written; an old file is kept.
    """
    write_bytes(path, text_of(message).encode())


def write_binary(path: str | os.PathLike[str], message: Message) -> None:
    """Write a message in protobuf's binary encoding: caffemodel, solverstate, binaryproto.

    Raises:
        OSError: The file cannot be written; an old file is kept.
        WeightsError: The message exceeds 2 GiB, or lacks a required field.
    """
    try:
        encoded = message.SerializeToString()
    except EncodeError as error:
        reason = str(error)
        raise WeightsError(reason, code=ErrorCode.MISSING).at(os.fspath(path)) from error
    write_pieces(path, [encoded])


def write_pieces(
    path: str | os.PathLike[str],
    pieces: Sequence[bytes | memoryview],
    hashed: "_Hash | None" = None,
) -> None:
    """Write the pieces of a message of at most 2 GiB, atomically; update a hash by the bytes."""
    size = sum(map(len, pieces))
    if size > LARGEST:
        reason = f"got {size} bytes, expected at most 2 GiB (protobuf); write HDF5 instead"
        raise WeightsError(reason, code=ErrorCode.LIMIT, got=size).at(os.fspath(path))
    with atomic_write(path, hashed) as file:
        file.writelines(pieces)
