"""Batches of images as bytes, converted to floats on the device: a quarter of the copying.

A device may upload the next batch while it computes the present one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.core.frozen_struct import FrozenStruct


class ImageBatch(FrozenStruct):
    """Cropped records, with the mean, scale and mirroring that the device applies.

    Attributes:
        bytes: The records. Shape: (N, C, h, w), uint8.
        places: For each record the first row and column of the crop, and 1 to mirror it left to
            right. Shape: (N, 3), int32.
        mean: Subtracted before mirroring, of the result's dtype. Shape: (C, H, W) for
            whole records, or (C, 1, 1) or (1, 1, 1); None for no mean.
        scale: Factor of the result.
    """

    bytes: np.ndarray
    places: np.ndarray
    mean: np.ndarray | None
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, C, h, w)."""
        return self.bytes.shape

    @property
    def nbytes(self) -> int:
        """Bytes that are copied to the device."""
        return self.bytes.nbytes + self.places.nbytes

    def __getitem__(self, records: slice) -> ImageBatch:
        return ImageBatch(self.bytes[records], self.places[records], self.mean, self.scale)


class Upload(Protocol):
    """A batch that is being uploaded, or is on the device."""

    def unpack(self, target: Array) -> None:
        """Queue the conversion of the batch to floats. Shape: (N * C * h * w,)."""

    def wait(self) -> None:
        """Wait until the host's arrays may be overwritten."""


class Uploader(Protocol):
    """Uploads batches of bytes to a device while it computes."""

    def send(self, pixels: ImageBatch, /) -> Upload:
        """Start copying a batch; invalidates the batch before the last."""
