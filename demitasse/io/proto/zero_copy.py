"""Messages with large arrays, read and written without further copies of the arrays.

protobuf would copy every array. For reading, the places of large arrays in the file are noted, the
rest is parsed as usual, and a marker in each blob identifies its array. An array is read from the
file to its destination in parts. Written bytes equal protobuf's own: fields in the order of their
numbers.

Source: Caffe, ``src/caffe/blob.cpp`` (FromProto, ToProto).
"""

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.internal.containers import RepeatedScalarFieldContainer as Scalars
from google.protobuf.message import Message

from demitasse.core.axes import MAX_AXES
from demitasse.errors import DemitasseError, ErrorCode, WeightsError
from demitasse.io.proto.caffe_pb2 import (
    BlobProto,
    BlobShape,
    LayerParameter,
    NetParameter,
    SolverState,
    V1LayerParameter,
)
from demitasse.io.proto.read_binary import FileView, OpenFile, open_binary, parsed
from demitasse.io.proto.wire_format import LENGTH, fields, length_prefix, payloads
from demitasse.io.proto.write import Pieces

Floats = npt.NDArray[Any]  # float32 or float64

NAMES = (("double_data", "data"), ("double_diff", "diff"))  # fields of values, and of gradients

RAW_TYPES = {BlobProto.DOUBLE: "<f8", BlobProto.FLOAT: "<f4", BlobProto.FLOAT16: "<f2"}


def floats(source: BlobProto | Scalars[float], diff: bool = False) -> Floats:
    """Return the values of a blob message, or of a field of numbers, flat. Shape: (count,).

    The array is float64 if stored as doubles, else float32; empty without values; read-only.

    Raises:
        WeightsError: Raw data has a type other than float.
    """
    if not isinstance(source, BlobProto):
        return _numbers(source)
    for name in NAMES[diff]:
        field = getattr(source, name)
        if len(field):
            return _numbers(field) if has_blocks(field) else _packed(source, name)
    return _raw(source, "raw_diff" if diff else "raw_data")


def count_floats(blob: BlobProto, diff: bool = False) -> int:
    """Return the number of values of ``floats``, with its errors."""
    for name in NAMES[diff]:
        count = len(getattr(blob, name))
        if count:
            return count
    return _raw(blob, "raw_diff" if diff else "raw_data").size


def set_floats(blob: BlobProto, values: Floats, diff: bool = False) -> None:
    """Replace the values of a blob message, or its gradient (``diff``), but not its shape.

    Values of any shape are read in C order. float64 is stored as doubles, other types as float32.
    """
    for name in (*NAMES[diff], "raw_diff" if diff else "raw_data"):
        blob.ClearField(name)
    if values.size:
        blob.MergeFromString(b"".join(_array_field(values, diff)))


def _array_field(values: Floats, diff: bool) -> Pieces:
    """Return values as a field of a blob message: its prefix and its body; empty without values."""
    double = values.dtype.name == "float64"  # of any byte order
    number = BlobProto.DESCRIPTOR.fields_by_name[NAMES[diff][0 if double else 1]].number
    block = np.ascontiguousarray(values, "<f8" if double else "<f4")
    body = block.reshape(-1).view(np.uint8).data
    return [length_prefix(number, body.nbytes), body] if block.size else []


def stored_shape(blob: BlobProto) -> tuple[int, ...]:
    """Return the shape of a blob message; old files have four numbers instead.

    Too many axes are a WeightsError.
    """
    if any(blob.HasField(name) for name in ("num", "channels", "height", "width")):
        return (blob.num, blob.channels, blob.height, blob.width)
    if len(blob.shape.dim) > MAX_AXES:
        axes = len(blob.shape.dim)
        message = f"got a blob of {axes} axes, expected at most {MAX_AXES}"
        raise WeightsError(message, code=ErrorCode.LIMIT, got=axes, expected=MAX_AXES)
    return tuple(blob.shape.dim)


def has_blocks(field: Scalars[float]) -> bool:
    """Return True if numpy can copy a field in one block (protobuf 7 and later)."""
    return hasattr(field, "__array__")


def _numbers(field: Scalars[float]) -> Floats:
    if has_blocks(field):
        return np.asarray(field)
    return np.fromiter(field, np.float32, len(field))


def _packed(blob: BlobProto, name: str) -> Floats:
    """Return values from the serialized message, the fastest way before protobuf 7."""
    number = BlobProto.DESCRIPTOR.fields_by_name[name].number
    width = "<f8" if name.startswith("double") else "<f4"
    encoded = blob.SerializePartialToString()
    parts = [np.frombuffer(part, width) for part in payloads(encoded, number)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _raw(blob: BlobProto, name: str) -> Floats:
    """Return values stored by NVCaffe; half floats become float32."""
    raw: bytes = getattr(blob, name)
    if not raw:
        return np.empty(0, np.float32)
    kind = getattr(blob, f"{name}_type")
    if kind not in RAW_TYPES:
        name_of_type = BlobProto.RawType.Name(kind)
        message = f"got {name} of type {name_of_type}, expected floats"
        raise WeightsError(message, code=ErrorCode.DTYPE_MISMATCH, field=name, got=name_of_type)
    width = np.dtype(RAW_TYPES[kind])
    if len(raw) % width.itemsize:
        message = f"got {len(raw)} bytes of {name}, expected a multiple of {width.itemsize}"
        raise WeightsError(message, code=ErrorCode.CORRUPT, field=name, got=len(raw))
    block = np.frombuffer(raw, width)
    return block.astype(np.float32) if kind == BlobProto.FLOAT16 else block


M = TypeVar("M", bound=Message)

LARGE = 1 << 16  # least size in bytes of arrays that are cut out

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


class StoredArray:
    """Array in a file; a slice of the array is read from the file."""

    def __init__(self, place: FileView, dtype: str) -> None:
        self._place, self._dtype = place, np.dtype(dtype)
        self.size = len(place) // self._dtype.itemsize

    def __getitem__(self, part: slice) -> Floats:
        first, end, _ = part.indices(self.size)
        values = np.empty(end - first, self._dtype)
        start = self._place.first + first * self._dtype.itemsize
        self._place.file.read_into(start, values.view(np.uint8).data)
        return values


class Arrays:
    """Arrays of a message that are still in its file."""

    def __init__(self, file: OpenFile | None = None) -> None:
        self._file = file
        self._mark = os.urandom(16)  # unpredictable: no file can fake a marker
        self._arrays: list[StoredArray] = []

    def add(self, array: StoredArray) -> bytes:
        """Store an array and return the marker of its blob."""
        self._arrays.append(array)
        return self._mark + b"%d" % (len(self._arrays) - 1)

    def floats(self, blob: BlobProto, diff: bool = False) -> Floats:
        """Return the values like ``floats`` of a blob message."""
        return self.stored(blob, diff)[:]

    def stored(self, blob: BlobProto, diff: bool = False) -> Floats | StoredArray:
        """Return the values like ``floats`` of a blob message; large ones are still in the file."""
        array = self._of(blob, diff)
        return floats(blob, diff) if array is None else array

    def check_unchanged(self) -> None:
        """Refuse a file that was written to after its opening."""
        if self._file is not None:
            self._file.check_unchanged()

    def count(self, blob: BlobProto, diff: bool = False) -> int:
        """Return the number of values."""
        array = self._of(blob, diff)
        return count_floats(blob, diff) if array is None else array.size

    def restore_arrays(self, blob: BlobProto) -> None:
        """Copy the arrays of a blob back into its message."""
        for diff in (False, True):
            array = self._of(blob, diff)
            if array is not None:
                set_floats(blob, array[:], diff)

    def _of(self, blob: BlobProto, diff: bool) -> StoredArray | None:
        raw: bytes = blob.raw_diff if diff else blob.raw_data
        if not raw.startswith(self._mark):
            return None
        return self._arrays[int(raw[len(self._mark) :])]


def read_message_arrays(
    path: str | os.PathLike[str], cls: type[M], error: type[DemitasseError] = WeightsError
) -> tuple[M, Arrays]:
    """Read a NetParameter or SolverState like ``read_binary``, with its large arrays separate."""
    contents = open_binary(path, error)
    arrays = Arrays(contents.file)
    try:
        try:
            encoded = b"".join(_rest(contents, PLACES[cls], arrays))
        except ValueError:  # protobuf reports the fault
            encoded, arrays = contents.read(), Arrays(contents.file)
        message = parsed(encoded, cls, path, error, whole=contents)
        arrays.check_unchanged()
    except DemitasseError as fault:
        if not fault.place:
            fault.at(os.fspath(path))
        raise
    return message, arrays


def _rest(view: FileView, places: dict[int, Any], arrays: Arrays) -> list[bytes]:
    """Return the parts of a message without the large arrays of its blobs."""
    parts: list[bytes] = []
    begin = 0
    for number, kind, start, body, end in fields(view):
        inner = places.get(number)
        if inner is None or kind != LENGTH or end - body < LARGE:
            continue
        payload = view.part(body, end)
        rest = _blob(payload, arrays) if inner is BLOB else _rest(payload, inner, arrays)
        size = sum(len(part) for part in rest)
        parts += [view.part(begin, start).read(), length_prefix(number, size), *rest]
        begin = end
    return [*parts, view.part(begin).read()]


def _blob(view: FileView, arrays: Arrays) -> list[bytes]:
    """Return the parts of a blob, its large arrays replaced by markers."""
    found = list(fields(view))
    parts: list[bytes] = []
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
        text = arrays.add(StoredArray(view.part(body, end), dtype))
        parts += [view.part(begin, start).read(), length_prefix(mark, len(text)), text]
        begin = end
    return [*parts, view.part(begin).read()]


def blob_pieces(data: Floats, diff: Floats | None = None) -> Pieces:
    """Return a blob message; float64 is stored as doubles, other types as float32."""
    arrays = _array_field(data, False)
    if diff is not None:
        arrays += _array_field(diff, True)
    shape: Pieces = []
    if data.ndim:
        encoded = BlobShape(dim=data.shape).SerializeToString()
        shape = [length_prefix(BlobProto.SHAPE_FIELD_NUMBER, len(encoded)), encoded]
    # in the order of the fields' numbers
    return [*shape, *arrays] if data.dtype == np.float64 else [*arrays, *shape]


def field_pieces(number: int, pieces: Pieces) -> Pieces:
    """Return a message as field ``number`` of an outer message."""
    return [length_prefix(number, sum(map(len, pieces))), *pieces]


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
