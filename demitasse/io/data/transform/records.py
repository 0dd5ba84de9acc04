"""Inputs of a transformer: arrays, messages or a blob, converted to arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.blob import Blob
from demitasse.errors import ErrorCode, ShapeError
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.data.images.decode import Color
from demitasse.io.proto import Datum

__all__ = ["Images", "as_batch", "need_shape"]

Images = np.ndarray | Sequence[np.ndarray]
"""One array (N, C, H, W), or N arrays (C, H, W); uint8 or floating point."""


def as_batch(images: Images | Datum | Sequence[Datum] | Blob, color: Color) -> tuple[Images, bool]:
    """Return records as arrays (C, H, W), and True if there was a single record.

    Raises:
        ShapeError: There are no records, or the number of axes is wrong.
    """
    if isinstance(images, Datum):
        return [datum_to_array(images, color)], True
    if isinstance(images, Blob):
        images = images.cpu_data()
    if isinstance(images, np.ndarray):
        if images.ndim not in {3, 4} or not len(images):
            message = f"got records of {images.shape}, expected (C, H, W) or (N, C, H, W)"
            raise ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, got=images.shape)
        return (images[None], True) if images.ndim == 3 else (images, False)
    if not images:
        message = "there are no records to transform"
        raise ShapeError(message, code=ErrorCode.MISSING)
    return [datum_to_array(one, color) if isinstance(one, Datum) else one for one in images], False


def need_shape(what: str, shape: tuple[int, ...], room: tuple[int, ...]) -> None:
    """Refuse a result that does not fit its destination.

    Raises:
        ShapeError: The shapes differ.
    """
    if shape != room:
        message = f"{what} {shape}, expected {room}"
        raise ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, got=shape, expected=room)
