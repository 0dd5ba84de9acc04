"""Loops over planes: all pixels of one image, of a vector of channels, or in C order of a channel.

Sums over planes are combined in a fixed order, so results do not depend on the number of threads.
No kernel has a barrier: one kernel writes sums, and the next kernel combines these sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from demitasse.backends.kernels.bound import BoundKernel
from demitasse.backends.kernels.images import Images, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    CompiledKernel,
    OptionalAddress,
    Struct,
    Values,
)
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Condition,
    Vector,
    Word,
    choose,
    horizontal_sum,
    minimum,
)
from demitasse.backends.kernels.tuning import Tuning

GROUP = 4
"""Most vectors of contiguous channels that are gone through together."""

FEW = 16
"""Channels up to which vectors are gone through one by one; a vector of any processor."""

FEW_WITH_REST = 4
"""Vectors that are gone through one by one if the last is partial."""

SHARED_BYTES = 8 << 20
"""Size of images up to which a cache that cores share holds most of them."""

BAND_BYTES = 256 << 10
"""Size of a band of larger images: a core's own caches hold bands of several images."""

BAND_PIXELS = 256
"""Pixels of a band that may exceed this size: fewer take longer than what the cache saves."""

UNROLLED = 4
"""Most independent sums over pixels, because an addition has a latency of some cycles."""

FIRST_PIXELS, FIRST_OF_MANY = 128, 32
"""First pixels of a plane, whose mean approximates the plane's mean.

Pixels of more than ``FEW`` channels are read from a second cache twice.

The kernel sums deviations from the approximate mean. If that mean is far from the plane's, these
pixels deviate as far, and the sum of squares is large: the relative error is bounded by the ratio
of the pixels' numbers.
"""

NUMBERS = "each_pixel", "each_image", "each", "pixels", "first_pixels", "eps"
"""Numbers of a normalisation; all but ``pixels`` and ``eps`` are reciprocals of counts."""

PLANE_SUMS = 2
"""Vectors of sums that each plane has."""


def takes(images: Images, width: int) -> bool:
    """Return whether images have vectors of channels or of pixels, at equal distances."""
    return width > 0 and images.is_even and (images.fits(width) or images.column_stride == 1)


class Lanes(NamedTuple):
    """Meaning of the lanes of a plane's vectors.

    Attributes:
        width: Lanes of a vector of a plane: one or several vectors of the processor.
        vectors: Number of vectors of the processor in one of a plane.
        wide: True if whole images are written pixel by pixel.
        banded: True if planes are those of bands, which are read in the order of their addresses
            before their planes are.
        unrolled: Independent sums over pixels; their number does not depend on the processor.
        kind: Empty if whole vectors are channels; "rest" if the last vector of channels is partial;
            "pixels" in C order, where the lanes are pixels of one channel.
    """

    width: int
    vectors: int = 1
    wide: bool = False
    unrolled: int = UNROLLED
    kind: str = ""
    banded: bool = False

    def __str__(self) -> str:
        flags = "banded" * self.banded + "wide" * self.wide
        return f"{flags}{self.kind}{self.vectors}x{self.unrolled}"

    @classmethod
    def of(cls, images: Images, width: int) -> Lanes:
        """Return the lanes for images of this layout, and vectors of ``width`` floats.

        Raises:
            ValueError: The layout has no vectors.
        """
        need_layout(takes(images, width), images)
        if not images.fits(width):
            return cls(width, kind="pixels")
        channels = images.shape[1]
        if channels <= FEW:
            return cls(width, kind="rest" * (channels % width > 0))
        unrolled = 2 if channels % FEW else 1  # single vectors would wait for each other
        if channels % width:
            wide = channels > FEW_WITH_REST * width
            vectors = 2 if wide else 1
            return cls(vectors * width, vectors, wide, unrolled, "rest")
        vectors = next(n for n in (GROUP, 2, 1) if channels % (n * width) == 0)
        return cls(vectors * width, vectors, channels > vectors * width, unrolled)

    def in_bands(self, images: Images) -> tuple[Images, Lanes]:
        """Return bands of equal numbers of pixels as images of their own, and the bands' lanes.

        Images that a cache holds, or that have one plane each, are left as they are.
        """
        if images.contiguous_bytes <= SHARED_BYTES or self.groups(images) == 1:
            return images, self
        n, channels, h, w = images.shape
        pixels = h * w
        most = max(BAND_BYTES // (channels * FLOAT), BAND_PIXELS)
        band = next(size for size in range(min(most, pixels), 0, -1) if pixels % size == 0)
        if 4 * band < most:  # the pixels have no better divisor
            return images, self
        size = band * channels
        bands = Images((n * (pixels // band), channels, 1, band), size, size, channels)
        return bands, self._replace(banded=True)

    def sums_size(self, images: Images) -> int:
        """Return the number of elements of the sums of all planes."""
        return PLANE_SUMS * images.shape[0] * self.groups(images) * self.width

    @property
    def first_pixels(self) -> int:
        """Pixels whose mean approximates a plane's mean."""
        return FIRST_PIXELS if self.unrolled == UNROLLED else FIRST_OF_MANY

    def groups(self, images: Images) -> int:
        """Return the number of planes of an image."""
        channels = images.shape[1]
        return channels if self.kind == "pixels" else -(-channels // self.width)

    def values(self, images: Images, eps: float, *, sums: bool) -> Values:
        """Return the values of the fields for images of this layout, and whether there are sums."""
        n, c, h, w = images.shape
        pixels, of_pixels = h * w, self.kind == "pixels"
        vectors = pixels // self.width if of_pixels else pixels
        first = min(pixels, self.first_pixels)
        if of_pixels and vectors:
            first -= first % self.width
        numbers = [1 / pixels, 1 / n, 1 / (n * pixels), pixels, 1 / first, eps]
        return PlaneFields.values(
            images=n,
            channels=c,
            groups=self.groups(images),
            pixels=vectors,
            rest=pixels % self.width if of_pixels else 0,
            image_stride=images.image_stride,
            group_stride=images.channel_stride if of_pixels else self.width,
            pixel_stride=self.width if of_pixels else images.column_stride,
            numbers=np.array(numbers, np.float32),
            sums=RUNTIME if sums else None,
        )


class PlaneFields(Struct):
    """Planes of images."""

    images: Word
    channels: Word
    groups: Word
    """Planes of an image."""
    pixels: Word
    """Vectors of a plane."""
    rest: Word
    """In C order: elements of a plane after its vectors."""
    image_stride: Word
    group_stride: Word
    """Elements from one plane of an image to the next."""
    pixel_stride: Word
    numbers: Address
    """Those of ``NUMBERS``."""
    sums: OptionalAddress
    """Two vectors for each plane: group by group, image by image."""


@dataclass(frozen=True)
class Plane:
    """A plane in a kernel.

    Attributes:
        first: Bytes from the beginning of the images to the plane's first pixel.
        row: Bytes from the beginning of rows of all images' channels to those of the image.
        channels: Bytes from the beginning of a row of all channels to the plane's channels.
        sums: Address of the plane's sums.
        all_sums: Address of the sums of the first image's plane of the same channels.
        some: Mask of the lanes of a vector; None for all.
        of_pixels: Whether the lanes are pixels of one channel.
    """

    k: Kernel
    first: Word
    row: Word
    channels: Word
    sums: Word
    all_sums: Word
    some: Condition | None
    of_pixels: bool

    def load(self, address: Word) -> Vector:
        """Return a vector of the images, with zeros for missing lanes."""
        return self.k.load(address, self.some)

    def store(self, value: Vector, address: Word) -> None:
        """Write a vector of the images."""
        self.k.store(value, address, self.some)

    def load_from(self, images: Word, here: Word, *, bf16: bool) -> Vector:
        """Return a vector of images of float32 or ``bf16``, so many bytes of float32 behind."""
        return self.k.load_bfloats(images + here // 2) if bf16 else self.load(images + here)

    def store_to(self, value: Vector, images: Word, here: Word, *, bf16: bool) -> None:
        """Write a vector of images of float32 or ``bf16``, so many bytes of float32 behind."""
        if bf16:
            self.k.store_bfloat(value, images + here // 2)
        else:
            self.store(value, images + here)

    def numbers(self, row: Word) -> Vector:
        """Return the numbers of the plane's channels from a row of all channels."""
        at = row + self.channels
        return self.k.broadcast(at) if self.of_pixels else self.load(at)

    def store_numbers(self, value: Vector, row: Word) -> None:
        """Write the numbers of the plane's channels to a row of all channels."""
        some = self.k.lane_mask(1) if self.of_pixels else self.some
        self.k.store(value, row + self.channels, some)


Step = Callable[..., Sequence[Vector] | None]
"""Takes the bytes from the beginning of the images to a vector, the plane, whose mask may be that
of a partial vector, and sums; returns the sums with the vector's addends."""

N = TypeVar("N")


class Planes:
    """The planes of a kernel, which reads images at the addresses ``read``."""

    def __init__(self, k: Kernel, f: PlaneFields, lanes: Lanes, read: Sequence[Word] = ()) -> None:
        self.k, self.f, self.lanes, self._read = k, f, lanes, read
        self._of_pixels, self._stride = lanes.kind == "pixels", f.pixel_stride * FLOAT

    def number(self, name: str) -> Vector:
        """Return a number of ``NUMBERS``."""
        return self.k.broadcast(self.f.numbers + FLOAT * NUMBERS.index(name))

    @contextmanager
    def each(self, *, first_image: bool = False) -> Iterator[Plane]:
        """Write a loop over the thread's planes, of all images or of the first one."""
        k, f = self.k, self.f
        images = k.word(1) if first_image else f.images
        with k.parallel_loop(images, f.groups) as (image, group):
            first = self._first(image, group)
            if self.lanes.banded and self._read:
                with k.when(group < 1):
                    for array in self._read:
                        k.touch(array + first, f.pixels * self._stride)
            yield self._plane(image, group, first)

    def _plane(self, image: Word, group: Word, first: Word) -> Plane:
        k, f, sums_bytes = self.k, self.f, PLANE_SUMS * self.k.vector_bytes
        all_sums = f.sums + group * f.images * sums_bytes
        some = k.lane_mask(f.channels - group * k.width) if self.lanes.kind == "rest" else None
        return Plane(
            k, first, image * f.channels * FLOAT,
            group * (FLOAT if self._of_pixels else k.vector_bytes),
            all_sums + image * sums_bytes, all_sums, some, self._of_pixels,
        )  # fmt: skip

    def _first(self, image: Word, group: Word) -> Word:
        """Return bytes from the beginning of the images to the first pixel of a plane."""
        return (image * self.f.image_stride + group * self.f.group_stride) * FLOAT

    def each_vector(
        self, numbers: Callable[[Plane], N], write: Callable[[Word, Plane, N], None]
    ) -> None:
        """Write a loop over all vectors of the images.

        ``write`` takes the bytes from the beginning of the images to a vector, its plane and the
        numbers of the plane's channels.
        """
        k, f = self.k, self.f
        if not self.lanes.wide:
            with self.each() as plane:
                known = numbers(plane)
                self.each_pixel(plane, lambda here, part: write(here, part, known))
            return
        with k.parallel_loop(f.images, f.pixels) as (image, pixel):
            first = image * f.image_stride * FLOAT + pixel * self._stride
            with k.loop(f.groups) as group:
                here = first + group.i * k.vector_bytes
                plane = self._plane(image, group.i, here)
                write(here, plane, numbers(plane))

    def each_pixel(
        self, plane: Plane, step: Step, count: int = 0, only: Word | None = None
    ) -> list[Vector]:
        """Write a loop over a plane's vectors, or its first ``only``; return ``count`` sums."""
        k, f, stride = self.k, self.f, self._stride
        rest = f.rest if only is None else choose(f.pixels < 1, f.rest, 0)
        pixels = f.pixels if only is None else only
        unrolled = self.lanes.unrolled if count else 1
        several, end, last = (
            plane.first + pixel * stride
            for pixel in (pixels // unrolled * unrolled, pixels, f.pixels)
        )

        def add(here: Word, part: Plane, sums: Sequence[Vector]) -> list[Vector]:
            return [*(step(here, part, *sums) or ())]

        zeros, steps = [k.constant(0.0)] * (count * unrolled), [stride * i for i in range(unrolled)]
        with k.loop(several, plane.first, stride * unrolled, vectors=zeros) as loop:
            groups = [loop.vectors[i * count : (i + 1) * count] for i in range(unrolled)]
            parts = [
                add(loop.i + at, plane, group) for at, group in zip(steps, groups, strict=True)
            ]
            loop.vectors = [total for part in parts for total in part]
        sums = [_pairwise_sum(loop.vectors[place::count]) for place in range(count)]
        with k.loop(end, several, stride, vectors=sums) as after:
            after.vectors = add(after.i, plane, after.vectors)
        if not self._of_pixels:
            return after.vectors
        with k.loop(minimum(rest, 1), vectors=after.vectors) as partial:
            some = replace(plane, some=k.lane_mask(rest))
            partial.vectors = add(last, some, partial.vectors)
        return [horizontal_sum(each) for each in partial.vectors]

    def over_images(
        self, plane: Plane, count: int, step: Callable[..., list[Vector]] | None = None
    ) -> list[Vector]:
        """Write ``count`` sums over the images, by default of the planes' sums; return the sums.

        ``step`` takes the address of an image's sums, and the sums before.
        """
        k = self.k

        def add(at: Word, *sums: Vector) -> list[Vector]:
            return [total + k.load(at + n * k.vector_bytes) for n, total in enumerate(sums)]

        with k.loop(self.f.images, vectors=[k.constant(0.0)] * count) as image:
            at = plane.all_sums + image.i * (PLANE_SUMS * k.vector_bytes)
            image.vectors = (step or add)(at, *image.vectors)
        return image.vectors


def _pairwise_sum(addends: Sequence[Vector]) -> Vector:
    """Return the sum of one, two or four vectors, of which pairs are added."""
    while len(addends) > 1:
        addends = [one + other for one, other in zip(addends[::2], addends[1::2], strict=True)]
    return addends[0]


class PlaneKernel(BoundKernel):
    """Kernels over the planes of images, one after the other.

    Several kernels take scratch memory, for the sums of all planes.

    Args:
        bands: Whether planes of large images may be those of bands, since they are combined.
        struct: Fields of the kernels; ``walk`` are those of the planes.
        kernels: Return the address of a kernel, given its width and lanes.
        eps: Number of the kernels.
        values: Values of the other fields.
    """

    def __init__(
        self, name: str, images: Images, tuning: Tuning, struct: type[Struct],
        *kernels: Callable[[int, Lanes], CompiledKernel], eps: float = 0.0, bands: bool = False,
        **values: Any,
    ) -> None:  # fmt: skip
        lanes, sums = Lanes.of(images, tuning.width), len(kernels) > 1
        if bands:
            images, lanes = lanes.in_bands(images)
        addresses = [kernel(lanes.width, lanes) for kernel in kernels]
        given = struct.values(walk=lanes.values(images, eps, sums=sums), **values)
        size = lanes.sums_size(images) if sums else 0
        super().__init__(name, addresses, given, tuning, scratch_size=size)
