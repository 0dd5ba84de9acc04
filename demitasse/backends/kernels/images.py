"""Layouts of batches of images, and copies of rows with zero padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

FLOAT_BYTES = 4


def first_channels(count: int, width: int) -> list[int]:
    """Return the first channel of each vector; the last begins early where they do not divide."""
    return [min(at, count - width) for at in range(0, count, width)]


def need_layout(fits: bool, *images: Images) -> None:
    """Raise ValueError if images do not have the layout that a kernel takes."""
    if not fits:
        message = (
            f"{' and '.join(map(str, images))} were given; give channels side by side, all or "
            "blocks of whole vectors, the same of all images"
        )
        raise ValueError(message)


Channels = TypeVar("Channels", int, np.ndarray)


@dataclass(frozen=True)
class Images:
    """Layout of float32 images with contiguous channels, in blocks or all of them.

    Strides are in elements.

    Attributes:
        shape: (N, C, H, W).
        block: Number of contiguous channels; C for all.
        block_stride: Elements from one block of channels to the next.
        planes: Planes of an image with a third axis; H and W are those of a plane.
        plane_stride: Elements from one plane to the next.
    """

    shape: tuple[int, int, int, int]
    image_stride: int
    row_stride: int
    column_stride: int
    block: int
    block_stride: int = 0
    planes: int = 1
    plane_stride: int = 0

    @classmethod
    def in_blocks(cls, shape: tuple[int, int, int, int], block: int) -> Images:
        """Return images (N, C, H, W) that lie in C order as (N, C / block, H, W, block)."""
        _, c, h, w = shape
        return cls(shape, c * h * w, w * block, block, block, h * w * block)

    def place(self, channel: Channels) -> Channels:
        """Return elements from the beginning of a pixel to a channel, or to each of some."""
        place: Channels = channel // self.block * self.block_stride + channel % self.block
        return place

    @property
    def is_even(self) -> bool:
        """True if the pixels of an image follow each other at equal distances."""
        _, _, h, w = self.shape
        return h == 1 or self.row_stride == w * self.column_stride

    @property
    def is_rows(self) -> bool:
        """True if the pixels of all images, each with all its channels, follow evenly."""
        n, c, h, w = self.shape
        follows = n == 1 or self.image_stride == h * w * self.column_stride
        follows = follows and self.planes == 1
        return self.block == c and self.is_even and follows

    def has_runs(self, width: int) -> bool:
        """Return whether contiguous channels are all, or whole vectors; False for a width of 0."""
        return bool(width) and (self.block == self.shape[1] or self.block % width == 0)

    def fits(self, width: int) -> bool:
        """Return whether there are vectors of ``width`` contiguous channels."""
        return self.block >= width and self.has_runs(width)

    def has_whole_vectors(self, width: int) -> bool:
        """Return whether contiguous channels are whole vectors; False for a width of 0."""
        return self.fits(width) and self.block % width == 0

    def vectors(self, width: int) -> list[tuple[int, int]]:
        """Return the first channel of each vector, and elements from the pixel's beginning to it.

        Where the channels do not divide, the last vector begins early; some channels are then in
        two vectors.

        Raises:
            ValueError: A vector's channels are not contiguous.
        """
        need_layout(self.fits(width), self)
        firsts = first_channels(self.shape[1], width)
        return [(at, self.place(at)) for at in firsts]
