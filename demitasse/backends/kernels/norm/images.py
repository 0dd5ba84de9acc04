"""Loop over images: shared code of normalisation kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    OptionalAddress,
    Struct,
    Values,
)
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
    """Number of images."""
    channels: Word
    """Channels of an image."""
    groups: Word
    """Vectors of channels of an image."""
    block_groups: Word
    """Those of a block of contiguous channels."""
    pixels: Word
    """Pixels of an image."""
    image_stride: Word
    """Elements from one image to the next."""
    block_stride: Word
    """Elements from one block to the next."""
    pixel_stride: Word
    """Elements from one pixel to the next."""
    sums: OptionalAddress
    """Address of two vectors for each plane: group by group, image by image."""
    counts: Address
    """Address of 1 / pixels, 1 / images, 1 / (images * pixels), pixels, 1 / the first
    pixels, and a small number."""


class Counts(NamedTuple):
    """Numbers in a kernel, as vectors."""

    each_pixel: Vector
    each_image: Vector
    each: Vector
    pixels: Vector
    first_pixels: Vector
    eps: Vector


class Plane(NamedTuple):
    """A plane in a kernel.

    Attributes:
        first: Bytes from the beginning of the images to its first pixel.
        image: Index of its image.
        channels: Bytes from the beginning of a row of all channels to its own.
        sums: Address of its sums.
        all_sums: Address of the sums of the first image's plane of the same channels.
        begins: Whether it is the first that the thread walks over, or the first image's.
        following: What ``first`` is of the plane after it. Of each of its pixels, that one's is
            fetched ahead: the processor does not find out by itself where a walk goes on.
        some: Which elements of a vector are channels; None for all.
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

    Args:
        k: The kernel.
        f: Its fields.
        rest: Whether the last vector of channels is a part of one.
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
    """Write sums over pixels.

    Args:
        k: The kernel.
        count: Number of pixels.
        stride: Bytes from one to the next.
        start: Zeros, one for each sum.
        step: Returns the sums with those of the pixel so many bytes behind the first.
    """
    several = count // UNROLLED * UNROLLED
    with k.loop(several, 0, UNROLLED, vectors=[*start] * UNROLLED) as loop:
        parts = []
        for place in range(UNROLLED):
            sums = loop.vectors[place * len(start) : (place + 1) * len(start)]
            parts += step((loop.i + place) * stride, sums)
        loop.vectors = parts
    sums = [_sum_of_four(loop.vectors[place :: len(start)]) for place in range(len(start))]
    with k.loop(count, several, vectors=sums) as rest:
        rest.vectors = step(rest.i * stride, rest.vectors)
    return rest.vectors


def _sum_of_four(parts: Sequence[Vector]) -> Vector:
    one, two, three, four = parts
    return (one + two) + (three + four)


def image_loop_values(images: Images, width: int, eps: float) -> Values:
    """Return the values of the fields.

    Args:
        images: Where all elements lie.
        width: Floats of a vector.
        eps: The small number.

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
        sums=RUNTIME,
        counts=np.array(numbers, np.float32),
    )


def sums_size(images: Images, width: int) -> int:
    """Return how many elements the sums of all planes have."""
    n, c, _, _ = images.shape
    return PLANE_SUMS * n * -(-c // width) * width
