"""Write messages that hold large arrays piece by piece: the arrays go into the file uncopied.

The bytes are those that protobuf itself would write: fields in the order of their numbers.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from demitasse.core.atomic import atomic_write
from demitasse.errors import WeightsError
from demitasse.io.proto.caffe_pb2 import BlobProto, BlobShape
from demitasse.io.proto.zero_copy.wire import LARGEST, length_prefix

__all__ = ["Pieces", "blob_pieces", "field_pieces", "with_field", "write_pieces"]

Pieces = list[bytes | memoryview]

SINGLE = (BlobProto.DATA_FIELD_NUMBER, BlobProto.DIFF_FIELD_NUMBER)
DOUBLE = (BlobProto.DOUBLE_DATA_FIELD_NUMBER, BlobProto.DOUBLE_DIFF_FIELD_NUMBER)


def blob_pieces(data: npt.NDArray[Any], diff: npt.NDArray[Any] | None = None) -> Pieces:
    """A blob message.

    Args:
        data: float64 is stored as doubles, all else as float32. Any shape, which is stored, too.
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
    """A message as field ``number`` of the one it is in."""
    return [length_prefix(number, sum(map(_size, pieces))), *pieces]


def with_field(message: Message, number: int, values: Sequence[Pieces]) -> Pieces:
    """A message with further values of a repeated field ``number``, of which it has none itself."""
    low, high = type(message)(), type(message)()
    low.CopyFrom(message)
    high.CopyFrom(message)
    for field, _ in message.ListFields():
        (high if field.number < number else low).ClearField(field.name)
    low.DiscardUnknownFields()  # those come last
    pieces: Pieces = [low.SerializePartialToString()]
    for value in values:
        pieces += field_pieces(number, value)
    return [*pieces, high.SerializePartialToString()]


def write_pieces(path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview]) -> None:
    """Write the pieces of a message, atomically.

    Raises:
        OSError: The file cannot be written; an old one is kept.
        WeightsError: They are larger than 2 GiB together.
    """
    parts = list(pieces)
    size = sum(map(_size, parts))
    if size > LARGEST:
        reason = f"{size} bytes do not fit a protobuf file (2 GiB); write HDF5 instead"
        raise WeightsError(reason).at(os.fspath(path))
    with atomic_write(path) as file:
        for part in parts:
            file.write(part)


def _size(piece: bytes | memoryview) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)
