"""Datum: a database record, an image or another array (C, H, W) with a label.

Source: Caffe, ``src/caffe/proto/caffe.proto`` and ``src/caffe/util/io.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from demitasse.errors import DataError, ErrorCode, ShapeError
from demitasse.io.data.images.decode import Color, decode_image
from demitasse.io.proto import Datum, floats

__all__ = ["Label", "array_to_datum", "datum_to_array", "label_of"]

Label = int | float | tuple[float, ...]
"""A class, a number, or several numbers."""


def datum_to_array(datum: Datum, color: Color = "native") -> np.ndarray:
    """Return the array of a record.

    Args:
        datum: The record.
        color: Channels of a decoded image; other records ignore ``color``, as in Caffe.

    Returns:
        uint8, or float32 for ``float_data``. Shape: (C, H, W); read-only.

    Raises:
        DataError: The number of values differs from the declared shape, or an image is damaged.
    """
    if datum.encoded:
        return decode_image(datum.data, color)
    shape = (datum.channels, datum.height, datum.width)
    values = np.frombuffer(datum.data, np.uint8) if datum.data else floats(datum.float_data)
    if min(shape) < 0 or values.size != math.prod(shape):
        C, H, W = shape
        message = f"the record declares {C} x {H} x {W}, but has {values.size} values"
        raise DataError(message, code=ErrorCode.COUNT_MISMATCH, got=values.size, expected=shape)
    return values.reshape(shape)


def label_of(datum: Datum) -> Label:
    """Return the label of a record: ``labels`` if present, else ``label``."""
    if not datum.labels:
        return datum.label
    return datum.labels[0] if len(datum.labels) == 1 else tuple(datum.labels)


def array_to_datum(array: np.ndarray, label: int | float | Sequence[float] | None = None) -> Datum:
    """Return a Datum of ``array``.

    Args:
        array: uint8 is stored as bytes, any other dtype as float32. Shape: (C, H, W).
        label: A class, a number, several numbers (which Caffe ignores), or None.

    Raises:
        ShapeError: The array does not have three axes.
        DataError: The label is no number, or a class beyond 32 bits.
    """
    if array.ndim != 3:
        message = f"got an array of shape {array.shape}, expected (channels, height, width)"
        raise ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, got=array.shape)
    datum = Datum()
    datum.channels, datum.height, datum.width = array.shape
    if array.dtype == np.uint8:
        datum.data = array.tobytes()
    else:
        datum.float_data.extend(np.asarray(array, np.float32).ravel().tolist())
    try:
        if isinstance(label, (int, np.integer)):
            datum.label = int(label)
        elif label is not None:
            datum.labels.extend(np.atleast_1d(np.asarray(label, np.float32)).tolist())
    except ValueError:
        message = f"got the label {label!r}, expected a 32-bit integer, or one or more numbers"
        raise DataError(message, code=ErrorCode.INVALID, field="label") from None
    return datum
