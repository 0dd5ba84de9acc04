"""Write messages as text or binary files; the old file stays whole until the new one is."""

import os

from google.protobuf import text_format
from google.protobuf.message import EncodeError, Message

from demitasse.core.atomic import atomic_write
from demitasse.errors import WeightsError
from demitasse.io.proto.zero_copy.wire import LARGEST

__all__ = ["text_of", "write_binary", "write_text"]


def text_of(message: Message) -> str:
    """The message as prototxt, fields in the order of their numbers."""
    return text_format.MessageToString(message, use_index_order=False)


def write_text(path: str | os.PathLike[str], message: Message) -> None:
    """Write a message as prototxt, in UTF-8.

    Raises:
        OSError: The file cannot be written; an old one is kept.
    """
    with atomic_write(path) as file:
        file.write(text_of(message).encode())


def write_binary(path: str | os.PathLike[str], message: Message) -> None:
    """Write a message in protobuf's binary encoding: caffemodel, solverstate, binaryproto.

    Raises:
        OSError: The file cannot be written; an old one is kept.
        WeightsError: The message is larger than 2 GiB or lacks a required field.
    """
    try:
        encoded = message.SerializeToString()
    except EncodeError as error:
        raise WeightsError(str(error)).at(os.fspath(path)) from error
    if len(encoded) > LARGEST:
        reason = f"{len(encoded)} bytes do not fit a protobuf file (2 GiB); write HDF5 instead"
        raise WeightsError(reason).at(os.fspath(path))
    with atomic_write(path) as file:
        file.write(encoded)
