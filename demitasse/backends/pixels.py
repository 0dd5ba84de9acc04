"""Batches of images as bytes, which a device makes into numbers: a quarter of the copying.

A device may bring the next batch in while it works on the one before.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.core.frozen_struct import FrozenStruct

__all__ = ["ImageBatch", "Upload", "Uploader"]


class ImageBatch(FrozenStruct):
    """Records that were cut out, and what is still to be done: centre, scale and turn them.

    Attributes:
        bytes: The records. Shape: (N, C, h, w), uint8.
        places: For each record the first row and the first column of what was cut out, and 1 where
            it is to be turned left to right. Shape: (N, 3), int32.
        mean: What is subtracted before they are turned, of the result's dtype. Shape: (C, H, W) for
            whole records, or (C, 1, 1) or (1, 1, 1); None where there is nothing.
        scale: What the result is multiplied with.
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
    """A batch on its way to a device, or there."""

    def unpack(self, target: Array) -> None:
        """Queue what makes numbers of it, once it is there. Shape: (N * C * h * w,)."""

    def wait(self) -> None:
        """Wait until the host's arrays may be overwritten."""


class Uploader(Protocol):
    """Brings batches of bytes to a device, one while another is used."""

    def send(self, pixels: ImageBatch, /) -> Upload:
        """Start copying a batch; the one before the last may not be unpacked any more."""
