"""Datum: one record of a database, an image or any other array (C, H, W) with a label.

Source: Caffe, ``src/caffe/proto/caffe.proto`` and ``src/caffe/util/io.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from demitasse.errors import DataError, ShapeError
from demitasse.io.data.images.decode import Color, decode_image
from demitasse.io.proto import Datum, floats

__all__ = ["Label", "array_to_datum", "datum_to_array", "label_of"]

Label = int | float | tuple[float, ...]
"""A class, a number, or several numbers."""


def datum_to_array(datum: Datum, color: Color = "native") -> np.ndarray:
    """Return the contents of a record.

    Args:
        datum: The record.
        color: Channels to decode an encoded image to; other records ignore it, as in Caffe.

    Returns:
        uint8, or float32 for ``float_data``. Shape: (C, H, W); read-only.

    Raises:
        DataError: It holds another number of values than it says, or cannot be decoded.
    """
    if datum.encoded:
        return decode_image(datum.data, color)
    shape = (datum.channels, datum.height, datum.width)
    values = np.frombuffer(datum.data, np.uint8) if datum.data else floats(datum.float_data)
    if min(shape) < 0 or values.size != math.prod(shape):
        C, H, W = shape
        message = f"the record says it is {C} x {H} x {W}, but holds {values.size} values"
        raise DataError(message)
    return values.reshape(shape)


def label_of(datum: Datum) -> Label:
    """Return the label of a record: what ``labels`` holds, otherwise ``label``."""
    if not datum.labels:
        return datum.label
    return datum.labels[0] if len(datum.labels) == 1 else tuple(datum.labels)


def array_to_datum(array: np.ndarray, label: int | float | Sequence[float] | None = None) -> Datum:
    """Return a record that holds ``array``.

    Args:
        array: uint8 values are stored as bytes, any others as float32. Shape: (C, H, W).
        label: Its class, another number or several of them, which Caffe would not see, or None.

    Raises:
        ShapeError: It does not have three axes.
        DataError: The label is no number, or a class beyond 32 bits.
    """
    if array.ndim != 3:
        message = f"a record is (channels, height, width), this array is {array.shape}"
        raise ShapeError(message)
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
        message = f"a label is a whole number of 32 bits, or one or more numbers, not {label!r}"
        raise DataError(message) from None
    return datum
