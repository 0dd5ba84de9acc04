"""Writing of messages with large arrays, without copying the arrays.

The bytes equal protobuf's own: fields in the order of their numbers.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from demitasse.core.atomic import atomic_write
from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto.caffe_pb2 import BlobProto, BlobShape
from demitasse.io.proto.zero_copy.wire import LARGEST, length_prefix

__all__ = ["Pieces", "blob_pieces", "field_pieces", "with_field", "write_pieces"]

Pieces = list[bytes | memoryview]

SINGLE = (BlobProto.DATA_FIELD_NUMBER, BlobProto.DIFF_FIELD_NUMBER)
DOUBLE = (BlobProto.DOUBLE_DATA_FIELD_NUMBER, BlobProto.DOUBLE_DIFF_FIELD_NUMBER)


def blob_pieces(data: npt.NDArray[Any], diff: npt.NDArray[Any] | None = None) -> Pieces:
    """Return a blob message.

    Args:
        data: Any shape; float64 is stored as doubles, others as float32.
        diff: The gradient, of the same shape, or None.
    """
    double = data.dtype == np.float64
    numbers = DOUBLE if double else SINGLE
    arrays: Pieces = []
    for number, array in zip(numbers, (data, diff), strict=True):
        if array is not None and array.size:
            block = np.ascontiguousarray(array, "<f8" if double else "<f4")
            body = block.reshape(-1).view(np.uint8).data
            arrays += [length_prefix(number, body.nbytes), body]
    shape: Pieces = []
    if data.ndim:
        encoded = BlobShape(dim=data.shape).SerializeToString()
        shape = [length_prefix(BlobProto.SHAPE_FIELD_NUMBER, len(encoded)), encoded]
    return [*shape, *arrays] if double else [*arrays, *shape]


def field_pieces(number: int, pieces: Pieces) -> Pieces:
    """Return a message as field ``number`` of an outer message."""
    return [length_prefix(number, sum(map(_size, pieces))), *pieces]


def with_field(message: Message, number: int, values: Sequence[Pieces]) -> Pieces:
    """Return a message with values of its empty repeated field ``number``."""
    low, high = type(message)(), type(message)()
    low.CopyFrom(message)
    high.CopyFrom(message)
    for field, _ in message.ListFields():
        (high if field.number < number else low).ClearField(field.name)
    low.DiscardUnknownFields()  # unknown fields come last
    pieces: Pieces = [low.SerializePartialToString()]
    for value in values:
        pieces += field_pieces(number, value)
    return [*pieces, high.SerializePartialToString()]


def write_pieces(path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview]) -> None:
    """Write the pieces of a message, atomically.

    Raises:
        OSError: The file cannot be written; an old file is kept.
        WeightsError: The pieces exceed 2 GiB.
    """
    parts = list(pieces)
    size = sum(map(_size, parts))
    if size > LARGEST:
        reason = f"got {size} bytes, expected at most 2 GiB (protobuf); write HDF5 instead"
        raise WeightsError(reason, code=ErrorCode.LIMIT, got=size).at(os.fspath(path))
    with atomic_write(path) as file:
        for part in parts:
            file.write(part)


def _size(piece: bytes | memoryview) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)
