"""Values of BlobProto as numpy arrays, copied in blocks.

Source: Caffe, ``src/caffe/blob.cpp`` (FromProto, ToProto).
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.internal.containers import RepeatedScalarFieldContainer as Scalars

from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto.caffe_pb2 import BlobProto
from demitasse.io.proto.zero_copy.wire import length_prefix, payloads

__all__ = ["count_floats", "floats", "set_floats", "stored_shape"]

Floats = npt.NDArray[Any]  # float32 or float64

MAX_AXES = 32
RAW_TYPES = {BlobProto.DOUBLE: "<f8", BlobProto.FLOAT: "<f4", BlobProto.FLOAT16: "<f2"}


def floats(source: BlobProto | Scalars[float], diff: bool = False) -> Floats:
    """Return the values of a blob message, flat.

    Args:
        source: A blob message, or a field of numbers of any message.
        diff: Return the gradient instead of the data.

    Returns:
        Shape (count,); float64 if stored as doubles, else float32; empty without values.
        Read-only.

    Raises:
        WeightsError: Raw data has a type other than float.
    """
    if not isinstance(source, BlobProto):
        return _numbers(source)
    singles, doubles = ("diff", "double_diff") if diff else ("data", "double_data")
    for name in (doubles, singles):
        field = getattr(source, name)
        if len(field):
            return _numbers(field) if has_blocks(field) else _packed(source, name)
    return _raw(source, "raw_diff" if diff else "raw_data")


def count_floats(blob: BlobProto, diff: bool = False) -> int:
    """Return the number of values of ``floats``.

    Raises:
        WeightsError: Raw data has a type other than float.
    """
    singles, doubles = ("diff", "double_diff") if diff else ("data", "double_data")
    for name in (doubles, singles):
        count = len(getattr(blob, name))
        if count:
            return count
    return _raw(blob, "raw_diff" if diff else "raw_data").size


def set_floats(blob: BlobProto, values: Floats, diff: bool = False) -> None:
    """Replace the values of a blob message; its shape is not changed.

    Args:
        blob: The message to fill.
        values: Any shape, read in C order; float64 is stored as doubles, others as float32.
        diff: Replace the gradient instead of the data.
    """
    names = ("diff", "double_diff", "raw_diff") if diff else ("data", "double_data", "raw_data")
    for name in names:
        blob.ClearField(name)
    double = values.dtype == np.float64
    block = np.ascontiguousarray(values, "<f8" if double else "<f4")
    if block.size:
        number = BlobProto.DESCRIPTOR.fields_by_name[names[double]].number
        body = block.reshape(-1).view(np.uint8).data
        blob.MergeFromString(b"".join([length_prefix(number, body.nbytes), body]))


def stored_shape(blob: BlobProto) -> tuple[int, ...]:
    """Return the shape of a blob message; old files have four numbers instead.

    Raises:
        WeightsError: The shape has too many axes.
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
