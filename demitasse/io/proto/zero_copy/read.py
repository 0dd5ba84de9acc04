"""Reading of messages without copying their large arrays.

protobuf would copy every array. Here large arrays are cut out of the mapped file, the rest is
parsed as usual, and a marker in each blob identifies its array.
"""

import mmap
import os
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from demitasse.errors import DemitasseError, WeightsError
from demitasse.io.proto.caffe_pb2 import (
    BlobProto,
    LayerParameter,
    NetParameter,
    SolverState,
    V1LayerParameter,
)
from demitasse.io.proto.read_binary import mapped_file, parsed
from demitasse.io.proto.zero_copy.arrays import count_floats, floats, set_floats
from demitasse.io.proto.zero_copy.wire import LENGTH, fields, length_prefix

__all__ = ["Arrays", "read_cut"]

M = TypeVar("M", bound=Message)
Array = npt.NDArray[Any]

LARGE = 1 << 16
"""Least size in bytes of arrays that are cut out."""

BLOB: dict[int, Any] = {}
PLACES: dict[type[Message], dict[int, Any]] = {
    NetParameter: {
        NetParameter.LAYER_FIELD_NUMBER: {LayerParameter.BLOBS_FIELD_NUMBER: BLOB},
        NetParameter.LAYERS_FIELD_NUMBER: {V1LayerParameter.BLOBS_FIELD_NUMBER: BLOB},
    },
    SolverState: {SolverState.HISTORY_FIELD_NUMBER: BLOB},
}
"""Nesting of blobs in messages, by field number."""

KINDS = {
    BlobProto.DATA_FIELD_NUMBER: ("<f4", BlobProto.RAW_DATA_FIELD_NUMBER),
    BlobProto.DIFF_FIELD_NUMBER: ("<f4", BlobProto.RAW_DIFF_FIELD_NUMBER),
    BlobProto.DOUBLE_DATA_FIELD_NUMBER: ("<f8", BlobProto.RAW_DATA_FIELD_NUMBER),
    BlobProto.DOUBLE_DIFF_FIELD_NUMBER: ("<f8", BlobProto.RAW_DIFF_FIELD_NUMBER),
}
"""Array field -> its dtype, and the field that stores the marker."""


class Arrays:
    """Arrays cut out of a message.

    Args:
        contents: Contents of the file.
    """

    def __init__(self, contents: mmap.mmap | bytes = b"") -> None:
        self._contents = contents
        self._mark = os.urandom(16)  # unpredictable: no file can fake a marker
        self._arrays: list[Array] = []

    def add(self, array: Array) -> bytes:
        """Store an array and return the marker of its blob."""
        self._arrays.append(array)
        return self._mark + b"%d" % (len(self._arrays) - 1)

    def floats(self, blob: BlobProto, diff: bool = False) -> Array:
        """Return the values like ``floats`` of a blob message; may be unaligned."""
        array = self._of(blob, diff)
        return floats(blob, diff) if array is None else array

    def count(self, blob: BlobProto, diff: bool = False) -> int:
        """Return the number of values."""
        array = self._of(blob, diff)
        return count_floats(blob, diff) if array is None else array.size

    def put_back(self, blob: BlobProto) -> None:
        """Copy the arrays of a blob back into its message."""
        for diff in (False, True):
            array = self._of(blob, diff)
            if array is not None:
                set_floats(blob, array, diff)

    def let_go(self) -> None:
        """Release the file's pages; later reads load them again."""
        if isinstance(self._contents, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self._contents.madvise(mmap.MADV_DONTNEED)

    def _of(self, blob: BlobProto, diff: bool) -> Array | None:
        raw: bytes = blob.raw_diff if diff else blob.raw_data
        if not raw.startswith(self._mark):
            return None
        return self._arrays[int(raw[len(self._mark) :])]


def read_cut(
    path: str | os.PathLike[str], cls: type[M], error: type[DemitasseError] = WeightsError
) -> tuple[M, Arrays]:
    """Read a message like ``read_binary``, with the large arrays of its blobs separate.

    Args:
        path: The file.
        cls: NetParameter or SolverState.
        error: Class of raised errors.

    Raises:
        DemitasseError: As ``error``: the file does not exist, or is empty, damaged or no such
            message.
    """
    contents = mapped_file(path, error)
    arrays = Arrays(contents)
    try:
        parts = _rest(memoryview(contents), PLACES[cls], arrays)
    except ValueError:  # protobuf reports the fault
        return parsed(bytes(contents), cls, path, error), Arrays()
    return parsed(b"".join(parts), cls, path, error, whole=contents), arrays


def _rest(view: memoryview, places: dict[int, Any], arrays: Arrays) -> list[bytes | memoryview]:
    """Return the parts of a message without the large arrays of its blobs.

    Raises:
        ValueError: The message is malformed.
    """
    parts: list[bytes | memoryview] = []
    begin = 0
    for number, kind, start, body, end in fields(view):
        inner = places.get(number)
        if inner is None or kind != LENGTH or end - body < LARGE:
            continue
        payload = view[body:end]
        rest = _blob(payload, arrays) if inner is BLOB else _rest(payload, inner, arrays)
        size = sum(len(part) for part in rest)
        parts += [view[begin:start], length_prefix(number, size), *rest]
        begin = end
    return [*parts, view[begin:]]


def _blob(view: memoryview, arrays: Arrays) -> list[bytes | memoryview]:
    """Return the parts of a blob, its large arrays replaced by markers."""
    found = list(fields(view))
    parts: list[bytes | memoryview] = []
    begin = 0
    numbers = [number for number, *_ in found]
    for number, kind, start, body, end in found:
        dtype, mark = KINDS.get(number, ("", 0))
        plain = kind == LENGTH and end - body >= LARGE and numbers.count(number) == 1
        others = {other for other, (_, same) in KINDS.items() if same == mark and other != number}
        if not dtype or not plain or others & set(numbers) or mark in numbers:
            continue  # split or duplicate fields: left to protobuf
        if (end - body) % np.dtype(dtype).itemsize:
            message = "an array ends inside a number"
            raise ValueError(message)
        text = arrays.add(np.frombuffer(view[body:end], dtype))
        parts += [view[begin:start], length_prefix(mark, len(text)), text]
        begin = end
    return [*parts, view[begin:]]
