"""What a transformer takes: arrays, messages or a blob, seen as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.blob import Blob
from demitasse.errors import ShapeError
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.data.images.decode import Color
from demitasse.io.proto import Datum

__all__ = ["Images", "as_batch", "need_shape"]

Images = np.ndarray | Sequence[np.ndarray]
"""One array (N, C, H, W), or N arrays (C, H, W); uint8 or floating point."""


def as_batch(images: Images | Datum | Sequence[Datum] | Blob, color: Color) -> tuple[Images, bool]:
    """Return some records as arrays (C, H, W), and whether it was a single one.

    Raises:
        ShapeError: There are none, or they have other axes.
    """
    if isinstance(images, Datum):
        return [datum_to_array(images, color)], True
    if isinstance(images, Blob):
        images = images.cpu_data()
    if isinstance(images, np.ndarray):
        if images.ndim not in {3, 4} or not len(images):
            message = f"records are (C, H, W) or (N, C, H, W), N above 0; this is {images.shape}"
            raise ShapeError(message)
        return (images[None], True) if images.ndim == 3 else (images, False)
    if not images:
        message = "there are no records to transform"
        raise ShapeError(message)
    return [datum_to_array(one, color) if isinstance(one, Datum) else one for one in images], False


def need_shape(what: str, shape: tuple[int, ...], room: tuple[int, ...]) -> None:
    """Refuse a result that does not fit where it should go.

    Raises:
        ShapeError: The shapes differ.
    """
    if shape != room:
        message = f"{what} {shape}, but there is room for {room}"
        raise ShapeError(message)
