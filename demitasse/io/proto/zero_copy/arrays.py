"""The numbers inside a BlobProto, to and from numpy, a block of memory at a time.

Source: Caffe, ``src/caffe/blob.cpp`` (FromProto, ToProto).
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.internal.containers import RepeatedScalarFieldContainer as Scalars

from demitasse.errors import WeightsError
from demitasse.io.proto.caffe_pb2 import BlobProto
from demitasse.io.proto.zero_copy.wire import length_prefix, payloads

__all__ = ["count_floats", "floats", "set_floats", "stored_shape"]

Floats = npt.NDArray[Any]  # float32 or float64

MAX_AXES = 32
RAW_TYPES = {BlobProto.DOUBLE: "<f8", BlobProto.FLOAT: "<f4", BlobProto.FLOAT16: "<f2"}


def floats(source: BlobProto | Scalars[float], diff: bool = False) -> Floats:
    """The values of a blob message, flat.

    Args:
        source: A blob message, or one of the number fields of any message.
        diff: The gradient instead of the data.

    Returns:
        Shape (count,); float64 where the message holds doubles, else float32; empty where it holds
        nothing. Not to be written to.

    Raises:
        WeightsError: The message holds raw data of a type that has no floats.
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
    """How many values ``floats`` would return.

    Raises:
        WeightsError: The message holds raw data of a type that has no floats.
    """
    singles, doubles = ("diff", "double_diff") if diff else ("data", "double_data")
    for name in (doubles, singles):
        count = len(getattr(blob, name))
        if count:
            return count
    return _raw(blob, "raw_diff" if diff else "raw_data").size


def set_floats(blob: BlobProto, values: Floats, diff: bool = False) -> None:
    """Put values into a blob message, in place of those it has; its shape is left alone.

    Args:
        blob: The message to fill.
        values: Any shape, read in C order; float64 is stored as doubles, all else as float32.
        diff: The gradient instead of the data.
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
    """The shape of a blob message; old files have four numbers instead.

    Raises:
        WeightsError: It has more axes than a blob can have.
    """
    if any(blob.HasField(name) for name in ("num", "channels", "height", "width")):
        return (blob.num, blob.channels, blob.height, blob.width)
    if len(blob.shape.dim) > MAX_AXES:
        message = f"a blob has {len(blob.shape.dim)} axes; no more than {MAX_AXES} are possible"
        raise WeightsError(message)
    return tuple(blob.shape.dim)


def has_blocks(field: Scalars[float]) -> bool:
    """Whether numpy can copy a field in one block, as from protobuf 7 on."""
    return hasattr(field, "__array__")


def _numbers(field: Scalars[float]) -> Floats:
    if has_blocks(field):
        return np.asarray(field)
    return np.fromiter(field, np.float32, len(field))


def _packed(blob: BlobProto, name: str) -> Floats:
    """Before protobuf 7 the quickest way to a block is the message's own bytes."""
    number = BlobProto.DESCRIPTOR.fields_by_name[name].number
    width = "<f8" if name.startswith("double") else "<f4"
    encoded = blob.SerializePartialToString()
    parts = [np.frombuffer(part, width) for part in payloads(encoded, number)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _raw(blob: BlobProto, name: str) -> Floats:
    """Values as NVCaffe stores them; half floats become float32."""
    raw: bytes = getattr(blob, name)
    if not raw:
        return np.empty(0, np.float32)
    kind = getattr(blob, f"{name}_type")
    if kind not in RAW_TYPES:
        message = f"a blob holds {name} of type {BlobProto.RawType.Name(kind)}, which is no float"
        raise WeightsError(message)
    width = np.dtype(RAW_TYPES[kind])
    if len(raw) % width.itemsize:
        message = f"{name} has {len(raw)} bytes, no multiple of {width.itemsize}"
        raise WeightsError(message)
    block = np.frombuffer(raw, width)
    return block.astype(np.float32) if kind == BlobProto.FLOAT16 else block
