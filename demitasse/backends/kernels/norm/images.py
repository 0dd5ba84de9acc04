"""Loop over images: shared code of normalisation kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, OptionalAddress, Struct, Values
from demitasse.backends.kernels.language.words import FLOAT, Condition, Vector, Word, chunk
from demitasse.backends.kernels.norm import has_rest, takes

UNROLLED = 4
"""Independent sums over pixels, because an addition has a latency of some cycles."""

FIRST_PIXELS = 128
"""First pixels of a plane, whose mean approximates the plane's mean.

The kernel sums deviations from the approximate mean. If that mean is far from the plane's, these
pixels deviate as far, and the sum of squares is large: the relative error is bounded by the ratio
of the pixels' numbers.
"""

PLANE_SUMS = 2
"""Vectors of sums that each plane has."""


class ImageLoopFields(Struct):
    """Planes: a vector of channels of one image each, all its pixels."""

    images: Word
    channels: Word
    groups: Word
    """Vectors of channels of an image."""
    block_groups: Word
    """Vectors of a block of contiguous channels."""
    pixels: Word
    """Pixels of an image."""
    image_stride: Word
    block_stride: Word
    pixel_stride: Word
    sums: OptionalAddress
    """Two vectors for each plane: group by group, image by image."""
    counts: Address
    """The numbers of :class:`Counts`."""


class Counts(NamedTuple):
    """Numbers in a kernel, as vectors; all but ``pixels`` and ``eps`` are reciprocals of counts."""

    each_pixel: Vector
    each_image: Vector
    each: Vector
    pixels: Vector
    first_pixels: Vector
    eps: Vector


class Plane(NamedTuple):
    """A plane in a kernel.

    Attributes:
        first: Bytes from the beginning of the images to the plane's first pixel.
        channels: Bytes from the beginning of a row of all channels to the plane's channels.
        all_sums: Address of the sums of the first image's plane of the same channels.
        begins: True for the first plane of the thread, and of the first image.
        following: ``first`` of the next plane, whose pixels are prefetched: the processor does not
            predict where the next plane begins.
        some: Mask of the channels of a vector; None for all.
    """

    first: Word
    image: Word
    channels: Word
    sums: Word
    all_sums: Word
    begins: Condition
    following: Word
    some: Condition | None

    def load(self, k: Kernel, address: Word) -> Vector:
        """Return a vector of channels, with zeros for missing channels."""
        return k.load(address) if self.some is None else k.masked_load(address, self.some)

    def store(self, k: Kernel, value: Vector, address: Word) -> None:
        """Write the existing channels of a vector."""
        if self.some is None:
            k.store(value, address)
        else:
            k.masked_store(value, address, self.some)


def counts(k: Kernel, f: ImageLoopFields) -> Counts:
    """Read the numbers."""
    return Counts(*(k.broadcast(f.counts + FLOAT * place) for place in range(len(Counts._fields))))


@contextmanager
def each_plane(k: Kernel, f: ImageLoopFields, *, rest: bool = False) -> Iterator[Plane]:
    """Write a loop over the thread's planes, grouped by channels.

    With ``rest``, the last vector of channels is partial.
    """
    begin, end = chunk(f.groups * f.images, *k.thread())
    with k.loop(end, begin) as loop:
        group, image = loop.i // f.images, loop.i % f.images
        all_sums = f.sums + group * f.images * (PLANE_SUMS * k.vector_bytes)
        yield Plane(
            _first(k, f, loop.i),
            image,
            group * k.vector_bytes,
            all_sums + image * (PLANE_SUMS * k.vector_bytes),
            all_sums,
            (loop.i - begin) * image < 1,
            _first(k, f, loop.i + 1),
            k.lane_mask(f.channels - group * k.width) if rest else None,
        )


def _first(k: Kernel, f: ImageLoopFields, number: Word) -> Word:
    """Return bytes from the beginning of the images to the first pixel of a plane."""
    group, image = number // f.images, number % f.images
    block, inner = group // f.block_groups, group % f.block_groups
    return (image * f.image_stride + block * f.block_stride + inner * k.width) * FLOAT


def summed(
    k: Kernel,
    count: Word,
    stride: Word,
    start: Sequence[Vector],
    step: Callable[[Word, Sequence[Vector]], list[Vector]],
) -> list[Vector]:
    """Write sums over ``count`` pixels, ``stride`` bytes apart, and return the sums.

    ``step`` adds the addends of the pixel at a number of bytes from the first to sums, which begin
    with the zeros ``start``.
    """
    several = count // UNROLLED * UNROLLED
    with k.loop(several, 0, UNROLLED, vectors=[*start] * UNROLLED) as loop:
        parts = []
        for place in range(UNROLLED):
            sums = loop.vectors[place * len(start) : (place + 1) * len(start)]
            parts += step((loop.i + place) * stride, sums)
        loop.vectors = parts
    sums = []
    for place in range(len(start)):
        one, two, three, four = loop.vectors[place :: len(start)]
        sums.append((one + two) + (three + four))
    with k.loop(count, several, vectors=sums) as rest:
        rest.vectors = step(rest.i * stride, rest.vectors)
    return rest.vectors


def image_loop_values(images: Images, width: int, eps: float = 0.0) -> Values:
    """Return the values of the fields for images of this layout.

    Raises:
        ValueError: Channels fill no whole vectors, or pixels do not follow each other.
    """
    if not (takes(images, width) or has_rest(images, width)):
        message = (
            f"{images.shape[1]} channels in blocks of {images.block} were given; give whole "
            f"vectors of {width} in short blocks, pixel behind pixel"
        )
        raise ValueError(message)
    n, c, h, w = images.shape
    pixels = h * w
    first = min(pixels, FIRST_PIXELS)
    numbers = [1 / pixels, 1 / n, 1 / (n * pixels), pixels, 1 / first, eps]
    return ImageLoopFields.values(
        images=n,
        channels=c,
        groups=-(-c // width),
        block_groups=-(-images.block // width),
        pixels=pixels,
        image_stride=images.image_stride,
        block_stride=images.block_stride,
        pixel_stride=images.column_stride,
        counts=np.array(numbers, np.float32),
    )


def sums_size(images: Images, width: int) -> int:
    """Return the number of elements of the sums of all planes."""
    n, c, _, _ = images.shape
    return PLANE_SUMS * n * -(-c // width) * width
