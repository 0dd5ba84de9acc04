"""AnnotatedDatum: an image with labelled boxes, as a database record.

Source: SSD (weiliu89/caffe), ``AnnotatedDatum`` in ``src/caffe/proto/caffe.proto``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from demitasse.errors import DataError, ErrorCode, ShapeError
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.databases.writing import write_records
from demitasse.io.proto import AnnotatedDatum, Datum

__all__ = ["COLUMNS", "add_object", "annotated_datum", "objects_in", "write_annotations"]

COLUMNS = ("label", "instance", "xmin", "ymin", "xmax", "ymax", "difficult")
"""Columns of an object: class, instance number, box relative to the image, difficult flag."""


def annotated_datum(
    image: np.ndarray | Datum, objects: Sequence[Sequence[float]]
) -> AnnotatedDatum:
    """Return a record with boxes, classes ascending, as SSD's tools write it.

    Args:
        image: Pixels (C, H, W), BGR, or a Datum with an encoded image.
        objects: Rows of class, xmin, ymin, xmax, ymax (relative to the image) and optionally
            difficult. Shape: (G, 5) or (G, 6).

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
        if not abs(label) < 1 << 31:  # also refuses NaN
            message = f"got the class {label:g}, expected a 32-bit integer"
            raise DataError(message, code=ErrorCode.OUT_OF_RANGE, field="label", got=label)
    for label in sorted({int(row[0]) for row in rows}):
        group = record.annotation_group.add(group_label=label)
        for number, row in enumerate(rows[rows[:, 0] == label]):
            xmin, ymin, xmax, ymax = row[1:5].tolist()
            if not (0 <= xmin <= xmax <= 1 and 0 <= ymin <= ymax <= 1):
                box = row[1:5].tolist()
                message = f"got the box {box}, expected xmin, ymin, xmax, ymax from 0 to 1"
                raise DataError(message, code=ErrorCode.OUT_OF_RANGE, field="bbox", got=box)
            box = group.annotation.add(instance_id=number).bbox
            box.xmin, box.ymin, box.xmax, box.ymax = xmin, ymin, xmax, ymax
            box.difficult = bool(row[5]) if len(row) > 5 else False
    return record


def add_object(
    record: AnnotatedDatum, label: int, box: tuple[float, float, float, float], *, difficult: bool
) -> None:
    """Add an object to the group of its class; a new class is appended.

    Args:
        record: The record to extend.
        label: The class.
        box: xmin, ymin, xmax, ymax, relative to the image.
        difficult: True if the object is hard to find, or a crowd.
    """
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


def write_annotations(
    path: str | Path,
    records: Iterable[tuple[np.ndarray | Datum, Sequence[Sequence[float]]]],
    *,
    overwrite: bool = False,
    backend: str = "LMDB",
) -> int:
    """Write images with objects as a database, with the keys 00000000, 00000001, ...

    Args:
        path: Folder to create.
        records: Arguments of ``annotated_datum``.
        overwrite: Replace an existing database.
        backend: ``"LMDB"`` or ``"LEVELDB"``.

    Returns:
        Number of records written.

    Raises:
        ConfigError: The backend is unknown.
        ShapeError: See ``annotated_datum``.
        DataError: See ``annotated_datum``; or ``path`` exists or cannot be written.
    """
    numbered = (
        (b"%08d" % number, annotated_datum(image, objects))
        for number, (image, objects) in enumerate(records)
    )
    return write_records(path, numbered, overwrite=overwrite, backend=backend)
