"""Read messages whose large arrays stay where they are in the file's bytes.

protobuf would copy every array into memory of its own. Here the arrays are cut out first, what is
left is parsed as usual, and a mark in each blob says which array belongs to it. The file is mapped:
what is read of it is read from the system's cache.
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
"""Arrays of so many bytes are cut out."""

BLOB: dict[int, Any] = {}
PLACES: dict[type[Message], dict[int, Any]] = {
    NetParameter: {
        NetParameter.LAYER_FIELD_NUMBER: {LayerParameter.BLOBS_FIELD_NUMBER: BLOB},
        NetParameter.LAYERS_FIELD_NUMBER: {V1LayerParameter.BLOBS_FIELD_NUMBER: BLOB},
    },
    SolverState: {SolverState.HISTORY_FIELD_NUMBER: BLOB},
}
"""Where blobs are in a message: fields inside fields."""

KINDS = {
    BlobProto.DATA_FIELD_NUMBER: ("<f4", BlobProto.RAW_DATA_FIELD_NUMBER),
    BlobProto.DIFF_FIELD_NUMBER: ("<f4", BlobProto.RAW_DIFF_FIELD_NUMBER),
    BlobProto.DOUBLE_DATA_FIELD_NUMBER: ("<f8", BlobProto.RAW_DATA_FIELD_NUMBER),
    BlobProto.DOUBLE_DIFF_FIELD_NUMBER: ("<f8", BlobProto.RAW_DIFF_FIELD_NUMBER),
}
"""Fields with arrays: what they hold, and the field that holds the mark instead."""


class Arrays:
    """The arrays that were cut out of a message.

    Args:
        contents: Of the file that they are in.
    """

    def __init__(self, contents: mmap.mmap | bytes = b"") -> None:
        self._contents = contents
        self._mark = os.urandom(16)  # no file can know it
        self._arrays: list[Array] = []

    def add(self, array: Array) -> bytes:
        """Take an array and return what marks its blob."""
        self._arrays.append(array)
        return self._mark + b"%d" % (len(self._arrays) - 1)

    def floats(self, blob: BlobProto, diff: bool = False) -> Array:
        """As ``floats`` of a blob message; perhaps at no whole multiple of a float's size."""
        array = self._of(blob, diff)
        return floats(blob, diff) if array is None else array

    def count(self, blob: BlobProto, diff: bool = False) -> int:
        """How many values that are."""
        array = self._of(blob, diff)
        return count_floats(blob, diff) if array is None else array.size

    def put_back(self, blob: BlobProto) -> None:
        """Make a blob one that needs nothing but itself."""
        for diff in (False, True):
            array = self._of(blob, diff)
            if array is not None:
                set_floats(blob, array, diff)

    def let_go(self) -> None:
        """Give back the memory that the file takes; what is read again comes back."""
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
    """Read a message as ``read_binary`` does, and the large arrays of its blobs.

    Args:
        path: The file.
        cls: NetParameter or SolverState.
        error: The exception class to raise.

    Raises:
        DemitasseError: As ``error``: the file is not there, empty, damaged or not such a message.
    """
    contents = mapped_file(path, error)
    arrays = Arrays(contents)
    try:
        parts = _rest(memoryview(contents), PLACES[cls], arrays)
    except ValueError:  # protobuf will say what is wrong
        return parsed(bytes(contents), cls, path, error), Arrays()
    return parsed(b"".join(parts), cls, path, error, whole=contents), arrays


def _rest(view: memoryview, places: dict[int, Any], arrays: Arrays) -> list[bytes | memoryview]:
    """Return the parts of a message without the large arrays of its blobs.

    Raises:
        ValueError: It is not well-formed.
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
    """Return the parts of a blob without its large arrays, and with marks for them."""
    found = list(fields(view))
    parts: list[bytes | memoryview] = []
    begin = 0
    numbers = [number for number, *_ in found]
    for number, kind, start, body, end in found:
        dtype, mark = KINDS.get(number, ("", 0))
        plain = kind == LENGTH and end - body >= LARGE and numbers.count(number) == 1
        others = {other for other, (_, same) in KINDS.items() if same == mark and other != number}
        if not dtype or not plain or others & set(numbers) or mark in numbers:
            continue  # in pieces, or given twice in two ways: protobuf knows what counts
        if (end - body) % np.dtype(dtype).itemsize:
            message = "an array ends inside a number"
            raise ValueError(message)
        text = arrays.add(np.frombuffer(view[body:end], dtype))
        parts += [view[begin:start], length_prefix(mark, len(text)), text]
        begin = end
    return [*parts, view[begin:]]
