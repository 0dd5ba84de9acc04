"""Blobs in messages: shapes, values and gradients, without a Python loop over the values.

Source: Caffe, ``src/caffe/blob.cpp``; half-precision ``raw_data`` is NVCaffe's.
"""

from __future__ import annotations

import numpy as np

from demitasse.proto import BlobProto

__all__ = ["proto_shape", "proto_values", "set_proto_values"]

LEGACY = ("num", "channels", "height", "width")


def is_legacy(proto: BlobProto) -> bool:
    """Whether a message says its shape in the four old fields."""
    return any(proto.HasField(name) for name in LEGACY)  # type: ignore[arg-type]


def proto_shape(proto: BlobProto) -> tuple[int, ...]:
    """Return the shape a message describes, old fields included."""
    if is_legacy(proto):
        return (proto.num, proto.channels, proto.height, proto.width)
    return tuple(proto.shape.dim)


def proto_values(proto: BlobProto, diff: bool = False) -> np.ndarray:
    """Return the values, or the gradient, of a message; double precision wins where both are.

    Shapes: (n,), float64, float32 or float16; n is 0 where there are none.
    """
    double = proto.double_diff if diff else proto.double_data
    if len(double):
        return np.asarray(double, np.float64)
    single = proto.diff if diff else proto.data
    return np.asarray(single, np.float32)


def set_proto_values(proto: BlobProto, values: np.ndarray, diff: bool = False) -> None:
    """Put one-dimensional values, or a gradient, into a message in their own precision."""
    if values.dtype == np.float64:
        field = proto.double_diff if diff else proto.double_data
    else:
        field = proto.diff if diff else proto.data
    field.extend(values)
