"""Layouts of batches of images, and fields of images in the arguments of kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from demitasse.backends.kernels.language.structs import RUNTIME, Address, Output, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, HALF, Word, choose


def first_channels(count: int, width: int) -> list[int]:
    """Return the first channel of each vector; the last begins early where they do not divide."""
    return [min(at, count - width) for at in range(0, count, width)]


def need_layout(fits: bool, *images: Images) -> None:
    """Raise ValueError if images do not have the layout that a kernel takes."""
    if not fits:
        message = (
            f"{' and '.join(map(str, images))} were given; give channels side by side, as many as "
            "a vector has or whole vectors, the same of all images"
        )
        raise ValueError(message)


@dataclass(frozen=True)
class Images:
    """Layout of images of float32 or bfloat16, with the channels last or in C order.

    Strides are in elements.

    Attributes:
        shape: (N, C, H, W).
        channel_stride: Elements from one channel to the next; 1 with the channels last.
        planes: Planes of an image with a third axis; H and W are those of a plane.
        plane_stride: Elements from one plane to the next.
        bf16: Whether elements are bfloat16.
    """

    shape: tuple[int, int, int, int]
    image_stride: int
    row_stride: int
    column_stride: int
    channel_stride: int = 1
    planes: int = 1
    plane_stride: int = 0
    bf16: bool = False

    @classmethod
    def channels_last(cls, shape: tuple[int, int, int, int], *, bf16: bool = False) -> Images:
        """Return images (N, C, H, W) that lie in C order as (N, H, W, C)."""
        _, c, h, w = shape
        return cls(shape, c * h * w, w * c, c, bf16=bf16)

    @classmethod
    def in_order(cls, shape: tuple[int, int, int, int]) -> Images:
        """Return images (N, C, H, W) in C order; one channel is last, too."""
        _, c, h, w = shape
        return cls(shape, c * h * w, w, 1, h * w if c > 1 else 1)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return HALF if self.bf16 else FLOAT

    @property
    def row_size(self) -> int:
        """Elements from the first of a row behind its last; all channels are contiguous."""
        return (self.shape[3] - 1) * self.column_stride + self.shape[1]

    @property
    def is_even(self) -> bool:
        """True if the pixels of an image follow each other at equal distances."""
        _, _, h, w = self.shape
        return h == 1 or self.row_stride == w * self.column_stride

    @property
    def is_rows(self) -> bool:
        """True if the pixels of all images, each with all its channels, follow evenly."""
        n, _, h, w = self.shape
        follows = n == 1 or self.image_stride == h * w * self.column_stride
        return self.channel_stride == self.planes == 1 and self.is_even and follows

    @property
    def contiguous_bytes(self) -> int:
        """Bytes of the images if all are contiguous, channels last; 0 if not."""
        contiguous = self.is_rows and self.column_stride == self.shape[1]
        return math.prod(self.shape) * FLOAT if contiguous else 0

    def paired(self) -> Images:
        """Return images of bfloat16, channels last, as images of float32: pairs of channels."""
        (n, c, h, w), strides = self.shape, (self.image_stride, self.row_stride, self.column_stride)
        image, row, column = (stride // 2 for stride in strides)
        return replace(
            self, shape=(n, c // 2, h, w), image_stride=image, row_stride=row,
            column_stride=column, plane_stride=self.plane_stride // 2, bf16=False,
        )  # fmt: skip

    @property
    def turned(self) -> Images:
        """The images with their rows as columns."""
        n, c, h, w = self.shape
        row, column = self.column_stride, self.row_stride
        return replace(self, shape=(n, c, w, h), row_stride=row, column_stride=column)

    def in_planes(self, count: int) -> Images:
        """Return images whose rows are those of so many images, one after the other."""
        n, c, rows, columns = self.shape
        shape, stride = (n * count, c, rows // count, columns), self.image_stride // count
        return replace(self, shape=shape, image_stride=stride)

    def every(self, step: tuple[int, int, int], size: tuple[int, ...]) -> Images:
        """Return ``size`` pixels a ``step`` apart: of both, the rows, columns and planes."""
        (down, right, deep), (rows, columns, planes) = step, size
        return replace(
            self, shape=(*self.shape[:2], rows, columns), row_stride=self.row_stride * down,
            column_stride=self.column_stride * right, planes=planes,
            plane_stride=self.plane_stride * deep,
        )  # fmt: skip

    def fits(self, width: int) -> bool:
        """Return whether there are vectors of ``width`` contiguous channels; False for 0."""
        return self.channel_stride == 1 and self.shape[1] >= width > 0

    def has_whole_vectors(self, width: int) -> bool:
        """Return whether contiguous channels are whole vectors; False for a width of 0."""
        return self.fits(width) and self.shape[1] % width == 0

    def vectors(self, width: int) -> list[int]:
        """Return the first channel of each vector.

        Where the channels do not divide, the last vector begins early; some channels are then in
        two vectors.

        Raises:
            ValueError: A vector's channels are not contiguous.
        """
        need_layout(self.fits(width), self)
        return first_channels(self.shape[1], width)


class ImageFields(Struct):
    """Images that are read."""

    at: Address
    image_stride: Word
    row_stride: Word
    column_stride: Word
    channel_stride: Word
    images: Word
    channels: Word
    rows: Word
    columns: Word

    @classmethod
    def of(cls, images: Images) -> Values:
        """Return the fields of images, whose address is an argument of each call."""
        return cls.values(at=RUNTIME, **geometry(images))

    def row(self, image: Word, row: Word | int, size: int = FLOAT) -> Word:
        """Return the address of a row's first pixel, of elements of so many bytes."""
        return self.at + (image * self.image_stride + row * self.row_stride) * size

    def row_or(self, zeros: Word, image: Word, row: Word, size: int = FLOAT) -> Word:
        """Return the address of a row's first pixel, or of ``zeros`` for a row outside."""
        return choose((row > -1) & (row < self.rows), self.row(image, row, size), zeros)

    @property
    def row_bytes(self) -> Word:
        """Bytes of a row with all its channels."""
        return ((self.columns - 1) * self.column_stride + self.channels) * FLOAT


class OutputFields(ImageFields):
    """Images that are written."""

    at: Output


def geometry(images: Images) -> dict[str, int]:
    """Return the fields but for the address."""
    count, channels, rows, columns = images.shape
    return {
        "image_stride": images.image_stride,
        "row_stride": images.row_stride,
        "column_stride": images.column_stride,
        "channel_stride": images.channel_stride,
        "images": count,
        "channels": channels,
        "rows": rows,
        "columns": columns,
    }
