"""Database records: Datum (an array with a label) and AnnotatedDatum (an image with boxes).

Source: Caffe, ``src/caffe/proto/caffe.proto`` and ``src/caffe/util/io.cpp``; SSD
(weiliu89/caffe), ``AnnotatedDatum``.
"""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, TypeGuard

import numpy as np

from demitasse.errors import DataError, ErrorCode, ShapeError
from demitasse.io.data.databases.database import Raw
from demitasse.io.data.images.codecs import Color, decode_image
from demitasse.io.proto import AnnotatedDatum, Datum, floats
from demitasse.io.proto.read_binary import parse_message

Label = int | float | tuple[float, ...]  # a class, a number, or several numbers


def datum_to_array(datum: Datum, color: Color = "native") -> np.ndarray:
    """Return the array of a record, read-only: uint8, or float32 for floats. Shape: (C, H, W).

    ``color`` selects the channels of a decoded image; other records ignore it, as in Caffe.

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


def datum_of(value: Raw) -> Datum:
    """Return the Datum of a record, which is a Datum or, as in SSD, an AnnotatedDatum."""
    datum = Datum.FromString(bytes(value))
    if datum.data or datum.float_data:
        return datum
    annotated = parse_message(bytes(value), AnnotatedDatum)
    return annotated.datum if annotated.HasField("datum") else datum


def label_of(datum: Datum) -> Label:
    """Return the label of a record: ``labels`` if present, else ``label``."""
    if not datum.labels:
        return datum.label
    return datum.labels[0] if len(datum.labels) == 1 else tuple(datum.labels)


def array_to_datum(array: np.ndarray, label: int | float | Sequence[float] | None = None) -> Datum:
    """Return a Datum of an array (C, H, W): uint8 is stored as bytes, other types as float32.

    ``label`` is a class, a number, several numbers (which Caffe ignores), or None.

    Raises:
        ShapeError: The array does not have three axes.
        DataError: The label is no number, or a class beyond 32 bits.
    """
    array = np.asarray(array)
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
        if _is_class(label):
            datum.label = int(label)
        elif label is not None:
            datum.labels.extend(np.atleast_1d(np.asarray(label, np.float32)).tolist())
    except (TypeError, ValueError):
        message = f"got the label {label!r}, expected a 32-bit integer, or one or more numbers"
        raise DataError(message, code=ErrorCode.INVALID, field="label") from None
    return datum


def _is_class(label: Any) -> TypeGuard[float]:
    """Return True for an integer of any size, and for other whole numbers within 32 bits."""
    if label is None or np.ndim(label):
        return False
    if isinstance(label, int) or np.asarray(label).dtype.kind in "iu":
        return True
    number = float(label)
    return number.is_integer() and abs(number) < 1 << 31


COLUMNS = ("label", "instance", "xmin", "ymin", "xmax", "ymax", "difficult")
"""Columns of an object: class, instance number, box relative to the image, difficult flag."""


def annotated_datum(
    image: np.ndarray | Datum, objects: Sequence[Sequence[float]]
) -> AnnotatedDatum:
    """Return a record with boxes, classes ascending, as SSD's tools write it.

    ``image`` is (C, H, W), BGR, or a Datum with an encoded image. ``objects`` are rows of class,
    xmin, ymin, xmax, ymax (relative to the image) and optionally difficult: (G, 5) or (G, 6).

    Raises:
        ShapeError: Rows or pixels have another shape.
        DataError: A box leaves the image or has negative size; a class is no 32-bit integer.
    """
    datum = image if isinstance(image, Datum) else array_to_datum(image)
    record = AnnotatedDatum(datum=datum, type="BBOX")
    try:
        rows = np.asarray(objects, np.float64)
    except ValueError as error:
        message = f"objects must be (G, 5) or (G, 6) numbers: {error}"
        raise ShapeError(message, code=ErrorCode.INVALID) from None
    if rows.shape != (0,) and (rows.ndim != 2 or rows.shape[1] not in {5, 6}):
        message = f"got objects of shape {rows.shape}, expected (G, 5) or (G, 6)"
        raise ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, got=rows.shape)
    for label in rows[:, 0].tolist() if len(rows) else ():
        if not (label.is_integer() and abs(label) < 1 << 31):  # NaN is no integer
            message = f"got the class {label:g}, expected a 32-bit integer"
            raise DataError(message, code=ErrorCode.OUT_OF_RANGE, field="label", got=label)
    for label, xmin, ymin, xmax, ymax, *more in sorted(rows.tolist(), key=itemgetter(0)):
        if not (0 <= xmin <= xmax <= 1 and 0 <= ymin <= ymax <= 1):
            box = [xmin, ymin, xmax, ymax]
            message = f"got the box {box}, expected xmin, ymin, xmax, ymax from 0 to 1"
            raise DataError(message, code=ErrorCode.OUT_OF_RANGE, field="bbox", got=box)
        add_object(record, int(label), (xmin, ymin, xmax, ymax), difficult=any(more))
    return record


def add_object(
    record: AnnotatedDatum, label: int, box: tuple[float, float, float, float], *, difficult: bool
) -> None:
    """Add an object to the group of its class; ``box`` is relative to the image."""
    groups = (group for group in record.annotation_group if group.group_label == label)
    group = next(groups, None) or record.annotation_group.add(group_label=label)
    added = group.annotation.add(instance_id=len(group.annotation))
    added.bbox.xmin, added.bbox.ymin, added.bbox.xmax, added.bbox.ymax = box
    added.bbox.difficult = difficult


def objects_in(record: AnnotatedDatum) -> np.ndarray:
    """Return the objects of a record. Shape: (G, 7), float32; see ``COLUMNS``."""
    rows = [
        (group.group_label, one.instance_id, b.xmin, b.ymin, b.xmax, b.ymax, b.difficult)
        for group in record.annotation_group
        for one in group.annotation
        for b in (one.bbox,)
    ]
    return np.array(rows, np.float32).reshape(-1, len(COLUMNS))
