"""Normalisation by the statistics of a batch, with the rectifier after it, in training.

The vectors are channels. Each image is read once for its mean and its sum of squared deviations.
Images are combined in a fixed order, so results do not depend on the number of threads. Backward
recomputes the rectifier's mask rather than keeping it. Each pass is two kernels, so no kernel has
a barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    OptionalAddress,
    Output,
    Struct,
    Values,
)
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Condition,
    Vector,
    Word,
    choose,
    chunk,
    clamp_min,
    fma,
    horizontal_sum,
    minimum,
    rectified,
    root,
)
from demitasse.backends.kernels.tuning import TunedKernel, Tuning

WIDEST = 4
"""Vectors of contiguous channels up to which each is gone through by itself.

More channels are gone through in groups of as many vectors, because the pixels of one vector lie
far apart in memory.
"""


class Lanes(NamedTuple):
    """Meaning of the lanes of a plane's vectors.

    Attributes:
        width: Lanes of a vector of a plane: one or several vectors of the processor.
        vectors: Number of vectors of the processor in one of a plane.
        wide: True if a pixel has too many contiguous channels to go through pixels first.
        kind: Empty if whole vectors are channels; "rest" if the last vector of channels is partial;
            "pixels" in C order, where the lanes are pixels of one channel.
    """

    width: int
    vectors: int = 1
    wide: bool = False
    kind: str = ""

    def __str__(self) -> str:
        return f"{'wide' * self.wide}{self.kind}{self.vectors}"

    @classmethod
    def of(cls, images: Images, width: int) -> Lanes:
        """Return the lanes for images of this layout, and vectors of ``width`` floats.

        Raises:
            ValueError: The layout has no vectors.
        """
        need_layout(takes(images, width), images)
        if images.block == 1:
            return cls(width, kind="pixels")
        wide = images.block > WIDEST * width and images.block == images.shape[1]
        if images.block % width:
            vectors = 2 if wide else 1
            return cls(vectors * width, vectors, wide, "rest")
        vectors = next(n for n in (4, 2, 1) if images.block % (n * width) == 0) if wide else 1
        return cls(vectors * width, vectors, wide)

    def sums_size(self, images: Images) -> int:
        """Return the number of elements of the sums of all planes."""
        return PLANE_SUMS * images.shape[0] * self.groups(images) * self.width

    @property
    def first_pixels(self) -> int:
        """Pixels whose mean approximates a plane's mean."""
        return FIRST_OF_WIDE if self.wide else FIRST_PIXELS

    def groups(self, images: Images) -> int:
        """Return the number of planes of an image."""
        channels = images.shape[1]
        return channels if self.kind == "pixels" else -(-channels // self.width)


def takes(images: Images, width: int) -> bool:
    """Return whether images have vectors of channels or pixels, at equal distances.

    The channels lie in blocks of whole vectors; side by side, from a vector on; or in C order.
    """
    block, channels = images.block, images.shape[1]
    fits = bool(width) and (block % width == 0 or block == channels > width or block == 1)
    return fits and images.row_stride == images.shape[3] * images.column_stride


UNROLLED = 4
"""Independent sums over pixels, because an addition has a latency of some cycles."""

FIRST_PIXELS, FIRST_OF_WIDE = 128, 32
"""First pixels of a plane, whose mean approximates the plane's mean.

Wide pixels are read from a second cache twice.

The kernel sums deviations from the approximate mean. If that mean is far from the plane's, these
pixels deviate as far, and the sum of squares is large: the relative error is bounded by the ratio
of the pixels' numbers.
"""

PLANE_SUMS = 2
"""Vectors of sums that each plane has."""


class ImageLoopFields(Struct):
    """Planes: all pixels of one image, of a vector of channels, or in C order of one channel."""

    images: Word
    channels: Word
    groups: Word
    """Planes of an image."""
    block_groups: Word
    """Vectors of a block of contiguous channels."""
    pixels: Word
    """Vectors of a plane."""
    rest: Word
    """In C order: elements of a plane after its vectors."""
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
        sums: Address of the plane's sums.
        all_sums: Address of the sums of the first image's plane of the same channels.
        following: ``first`` of the next plane, whose pixels are prefetched: the processor does not
            predict where the next plane begins.
        some: Mask of the lanes of a vector; None for all.
        lanes: Meaning of the lanes.
    """

    first: Word
    image: Word
    channels: Word
    sums: Word
    all_sums: Word
    following: Word
    some: Condition | None
    lanes: Lanes

    def load(self, k: Kernel, address: Word) -> Vector:
        """Return a vector of the images, with zeros for missing lanes."""
        return k.load(address) if self.some is None else k.masked_load(address, self.some)

    def store(self, k: Kernel, value: Vector, address: Word) -> None:
        """Write a vector of the images."""
        if self.some is None:
            k.store(value, address)
        else:
            k.masked_store(value, address, self.some)

    def numbers(self, k: Kernel, row: Word) -> Vector:
        """Return the numbers of the plane's channels from a row of all channels."""
        of_pixels = self.lanes.kind == "pixels"
        return k.broadcast(row + self.channels) if of_pixels else self.load(k, row + self.channels)

    def store_numbers(self, k: Kernel, value: Vector, row: Word) -> None:
        """Write the numbers of the plane's channels to a row of all channels."""
        if self.lanes.kind == "pixels":
            k.masked_store(value, row + self.channels, k.lane_mask(k.word(1)))
        else:
            self.store(k, value, row + self.channels)

    def total(self, value: Vector) -> Vector:
        """Return the sum over a channel's lanes."""
        return horizontal_sum(value) if self.lanes.kind == "pixels" else value


def counts(k: Kernel, f: ImageLoopFields) -> Counts:
    """Read the numbers."""
    return Counts(*(k.broadcast(f.counts + FLOAT * place) for place in range(len(Counts._fields))))


@contextmanager
def each_plane(k: Kernel, f: ImageLoopFields, lanes: Lanes) -> Iterator[Plane]:
    """Write a loop over the thread's planes, image after image."""
    begin, end = chunk(f.groups * f.images, *k.thread())
    image, group = begin // f.groups, begin % f.groups
    with k.loop(end, begin, words=[image, group, _first(k, f, image, group)]) as loop:
        image, group, first = loop.words
        last = group + 1 >= f.groups
        next_image, next_group = choose(last, image + 1, image), choose(last, 0, group + 1)
        following = _first(k, f, next_image, next_group)
        yield _plane(k, f, lanes, image, group, first, following)
        loop.words = [next_image, next_group, following]


@contextmanager
def each_group(k: Kernel, f: ImageLoopFields, lanes: Lanes) -> Iterator[Plane]:
    """Write a loop over the first image's planes, which threads divide."""
    begin, end = chunk(f.groups, *k.thread())
    with k.loop(end, begin) as loop:
        nothing = k.word(0)
        yield _plane(k, f, lanes, nothing, loop.i, nothing, nothing)


def _plane(
    k: Kernel, f: ImageLoopFields, lanes: Lanes, image: Word, group: Word, first: Word,
    following: Word,
) -> Plane:  # fmt: skip
    all_sums = f.sums + group * f.images * (PLANE_SUMS * k.vector_bytes)
    return Plane(
        first,
        image,
        group * (FLOAT if lanes.kind == "pixels" else k.vector_bytes),
        all_sums + image * (PLANE_SUMS * k.vector_bytes),
        all_sums,
        following,
        k.lane_mask(f.channels - group * k.width) if lanes.kind == "rest" else None,
        lanes,
    )


def _first(k: Kernel, f: ImageLoopFields, image: Word, group: Word) -> Word:
    """Return bytes from the beginning of the images to the first pixel of a plane."""
    block, inner = group // f.block_groups, group % f.block_groups
    return (image * f.image_stride + block * f.block_stride + inner * k.width) * FLOAT


def each_pixel(
    k: Kernel, f: ImageLoopFields, plane: Plane, write: Callable[[Word, Plane], None]
) -> None:
    """Write a loop over a plane's vectors.

    ``write`` takes the bytes from the first vector to the present one, and the plane.
    """
    stride = f.pixel_stride * FLOAT
    with k.loop(f.pixels) as pixel:
        write(pixel.i * stride, plane)
    if plane.lanes.kind == "pixels":
        with k.when(f.rest > 0):
            write(f.pixels * stride, plane._replace(some=k.lane_mask(f.rest)))


N = TypeVar("N")


def each_vector(
    k: Kernel, f: ImageLoopFields, lanes: Lanes, numbers: Callable[[Plane], N],
    write: Callable[[Word, Plane, N], None], ahead: Sequence[Word] = (),
) -> None:  # fmt: skip
    """Write a loop over all vectors of the images.

    ``write`` takes the bytes from the beginning of the images to a vector, its plane and the
    numbers of the plane's channels. Of the images ``ahead``, the next plane is prefetched.
    """
    if not lanes.wide:
        with each_plane(k, f, lanes) as plane:
            known = numbers(plane)

            def at(place: Word, plane: Plane, known: N = known) -> None:
                for array in ahead:
                    k.prefetch(array + plane.following + place, 2)
                write(plane.first + place, plane, known)

            each_pixel(k, f, plane, at)
        return
    nothing, (begin, end) = k.word(0), chunk(f.images * f.pixels, *k.thread())
    with k.loop(end, begin) as pixel:
        image, place = pixel.i // f.pixels, pixel.i % f.pixels
        first = (image * f.image_stride + place * f.pixel_stride) * FLOAT
        with k.loop(f.groups) as group:
            here = first + group.i * k.vector_bytes
            plane = _plane(k, f, lanes, image, group.i, here, nothing)
            write(here, plane, numbers(plane))


def summed(
    k: Kernel, f: ImageLoopFields, plane: Plane, start: Sequence[Vector],
    step: Callable[[Word, Sequence[Vector], Plane], list[Vector]], count: Word | None = None,
) -> list[Vector]:  # fmt: skip
    """Write sums over a plane's vectors, or its first ``count`` alone, and return the sums.

    ``step`` adds the addends of the vector at a number of bytes from the first to sums, which begin
    with the zeros ``start``. It takes the plane, whose mask may be that of a partial vector.
    """
    stride, rest = f.pixel_stride * FLOAT, f.rest
    if count is None:
        count = f.pixels
    else:
        rest = choose(f.pixels < 1, rest, 0)
    unrolled = UNROLLED // plane.lanes.vectors
    several = count // unrolled * unrolled
    with k.loop(several, 0, unrolled, vectors=[*start] * unrolled) as loop:
        parts = []
        for place in range(unrolled):
            sums = loop.vectors[place * len(start) : (place + 1) * len(start)]
            parts += step((loop.i + place) * stride, sums, plane)
        loop.vectors = parts
    sums = []
    for place in range(len(start)):
        addends = loop.vectors[place :: len(start)]
        while len(addends) > 1:
            pairs = zip(addends[::2], addends[1::2], strict=True)
            addends = [one + other for one, other in pairs]
        sums += addends
    if unrolled > 1:
        with k.loop(count, several, vectors=sums) as after:
            after.vectors = step(after.i * stride, after.vectors, plane)
        sums = after.vectors
    if plane.lanes.kind == "pixels":
        with k.loop(minimum(rest, 1), vectors=sums) as last:
            partial = plane._replace(some=k.lane_mask(rest))
            last.vectors = step(f.pixels * stride, last.vectors, partial)
        sums = [plane.total(each) for each in last.vectors]
    return sums


def image_loop_values(images: Images, lanes: Lanes, eps: float = 0.0) -> Values:
    """Return the values of the fields for images of this layout."""
    n, c, h, w = images.shape
    pixels, of_pixels = h * w, lanes.kind == "pixels"
    vectors = pixels // lanes.width if of_pixels else pixels
    first = min(pixels, lanes.first_pixels)
    if of_pixels and vectors:
        first -= first % lanes.width
    numbers = [1 / pixels, 1 / n, 1 / (n * pixels), pixels, 1 / first, eps]
    return ImageLoopFields.values(
        images=n,
        channels=c,
        groups=lanes.groups(images),
        block_groups=1 if of_pixels else -(-images.block // lanes.width),
        pixels=vectors,
        rest=pixels % lanes.width if of_pixels else 0,
        image_stride=images.image_stride,
        block_stride=images.block_stride,
        pixel_stride=lanes.width if of_pixels else images.column_stride,
        counts=np.array(numbers, np.float32),
    )


class ForwardFields(Struct):
    """A normalisation; the output has the layout of ``x``, and may be the same memory."""

    walk: ImageLoopFields
    x: Address
    y: Output
    factors: Address
    """Factor of each channel; the channels' other numbers are arrays of the same shape."""
    offsets: Address
    mean: Output
    variance: Output
    inverse: Output
    """1 / sqrt(variance + eps)."""


@ForwardFields.kernel("normalization_planes")
def _planes_kernel(k: Kernel, f: ForwardFields, lanes: Lanes) -> None:
    """Write each plane's mean and its sum of squared deviations."""
    numbers, zero = counts(k, f.walk), k.constant(0.0)
    with each_plane(k, f.walk, lanes) as plane:
        about, away, squares = _deviations(k, f, plane, numbers, ahead=True)
        by = away * numbers.each_pixel
        k.store(about + by, plane.sums)
        # rounding must not make it negative
        k.store(clamp_min(fma(-away, by, squares), zero), plane.sums + k.vector_bytes)


@ForwardFields.kernel("normalization_statistics")
def _statistics_kernel(k: Kernel, f: ForwardFields, lanes: Lanes) -> None:
    """Write the statistics of all images."""
    numbers, zero, step = counts(k, f.walk), k.constant(0.0), PLANE_SUMS * k.vector_bytes
    with each_group(k, f.walk, lanes) as plane:
        with k.loop(f.walk.images, vectors=[zero]) as image:
            image.vectors = [image.vectors[0] + k.load(plane.all_sums + image.i * step)]
        mean = image.vectors[0] * numbers.each_image
        with k.loop(f.walk.images, vectors=[zero, zero]) as image:
            at = plane.all_sums + image.i * step
            away = k.load(at) - mean
            within, between = image.vectors
            image.vectors = [within + k.load(at + k.vector_bytes), fma(away, away, between)]
        within, between = image.vectors
        variance = fma(between, numbers.pixels, within) * numbers.each
        inverse = k.constant(1.0) / root(variance + numbers.eps)
        for value, target in ((mean, f.mean), (variance, f.variance), (inverse, f.inverse)):
            plane.store_numbers(k, value, target)


@ForwardFields.kernel("normalization")
def _kernel(k: Kernel, f: ForwardFields, lanes: Lanes, *, relu: bool) -> None:
    def numbers(plane: Plane) -> tuple[Vector, Vector, Vector]:
        mean, offset = plane.numbers(k, f.mean), plane.numbers(k, f.offsets)
        return mean, plane.numbers(k, f.inverse) * plane.numbers(k, f.factors), offset

    def write(here: Word, plane: Plane, numbers: tuple[Vector, Vector, Vector]) -> None:
        mean, factor, offset = numbers
        value = fma(plane.load(k, f.x + here) - mean, factor, offset)
        plane.store(k, rectified(value, k.constant(0.0)) if relu else value, f.y + here)

    each_vector(k, f.walk, lanes, numbers, write, [f.x])


def _deviations(
    k: Kernel, f: ForwardFields | PlaneFields, plane: Plane, numbers: Counts, *, ahead: bool
) -> tuple[Vector, Vector, Vector]:
    """Return an approximate mean, the sum of deviations from it, and the sum of their squares.

    With ``ahead``, the next plane is prefetched.
    """
    zero, first = k.constant(0.0), f.x + plane.first
    lanes = plane.lanes
    vectors = lanes.first_pixels // (lanes.width if lanes.kind == "pixels" else 1)

    def add_up(at: Word, sums: Sequence[Vector], plane: Plane) -> list[Vector]:
        return [sums[0] + plane.load(k, first + at)]

    [total] = summed(k, f.walk, plane, [zero], add_up, minimum(f.walk.pixels, vectors))
    about = total * numbers.first_pixels

    def add(at: Word, sums: Sequence[Vector], plane: Plane) -> list[Vector]:
        if ahead:
            k.prefetch(f.x + plane.following + at, 2)
        away = plane.load(k, first + at) - about
        if plane.some is not None and plane.lanes.kind == "pixels":
            away = choose(plane.some, away, zero)
        return [sums[0] + away, fma(away, away, sums[1])]

    away, squares = summed(k, f.walk, plane, [zero, zero], add)
    return about, away, squares


class Normalization(TunedKernel):
    """y = (x - mean) / sqrt(variance + eps) * factor + offset, and perhaps max(y, 0); NaN stays.

    Mean and variance are those of each channel in the batch, or ``stored``, as the caller has
    written them. Input and output have one layout.

    Attributes:
        mean, variance: Statistics of the last batch. Shapes: (C,).
        inverse: 1 / sqrt(variance + eps). Shape: (C,).
        sums_size: Elements of scratch memory for a call.
    """

    kernel = "norm"

    def __init__(
        self, images: Images, eps: float, tuning: Tuning, *, relu: bool, stored: bool = False
    ) -> None:
        self.images, self.eps, self.tuning = images, eps, tuning
        self.relu, self.stored = relu, stored
        self.mean, self.variance, self.inverse = (aligned(images.shape[1]) for _ in range(3))
        lanes = self.lanes = Lanes.of(images, tuning.width)
        self.sums_size, width = lanes.sums_size(images), lanes.width
        measure = [] if stored else [_planes_kernel(width, lanes), _statistics_kernel(width, lanes)]
        self._kernels = (*measure, _kernel(width, lanes, relu=relu))
        self._arguments = Arguments(
            ForwardFields.values(
                walk=image_loop_values(images, lanes, eps),
                mean=self.mean,
                variance=self.variance,
                inverse=self.inverse,
            )
        )

    def __call__(
        self, source: np.ndarray, target: np.ndarray, factors: np.ndarray, offsets: np.ndarray,
        sums: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the statistics, unless they are stored; and ``target``, which may be ``source``."""
        each = {
            "x": source, "y": target, "factors": factors, "offsets": offsets, "walk.sums": sums,
        }  # fmt: skip
        self._arguments.run(self._kernels, self.tuning.threads, each)


class PlaneFields(Struct):
    """Planes that are normalised separately; the output has the layout of ``x``."""

    walk: ImageLoopFields
    x: Address
    y: Output
    deviations: Output
    """Divisor of each channel of each image."""


@PlaneFields.kernel("plane_norm")
def _plane_norm_kernel(k: Kernel, f: PlaneFields, lanes: Lanes) -> None:
    numbers, zero = counts(k, f.walk), k.constant(0.0)
    with each_plane(k, f.walk, lanes) as plane:
        about, away, squares = _deviations(k, f, plane, numbers, ahead=False)
        by = away * numbers.each_pixel
        variance = clamp_min(fma(-away, by, squares) * numbers.each_pixel, zero)
        mean, deviation = about + by, root(variance) + numbers.eps
        row = f.deviations + plane.image * f.walk.channels * FLOAT
        plane.store_numbers(k, deviation, row)

        def write(at: Word, plane: Plane) -> None:
            here = plane.first + at
            plane.store(k, (plane.load(k, f.x + here) - mean) / deviation, f.y + here)

        each_pixel(k, f.walk, plane, write)


class PlaneNorm(TunedKernel):
    """y = (x - mean) / (sqrt(variance) + eps), of each channel of each image; NaN stays.

    The divisors of the last call are ``deviations``, (N, C).
    """

    kernel = "plane norm"

    def __init__(self, images: Images, eps: float, tuning: Tuning) -> None:
        lanes = Lanes.of(images, tuning.width)
        self.tuning, self._kernel = tuning, _plane_norm_kernel(lanes.width, lanes)
        self.deviations = aligned(images.shape[0] * images.shape[1]).reshape(images.shape[:2])
        walk = image_loop_values(images, lanes, eps)
        self._arguments = Arguments(PlaneFields.values(walk=walk, deviations=self.deviations))

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write ``y``, which may be ``x``."""
        each: dict[str, np.ndarray | None] = {"x": x, "y": y, "walk.sums": None}
        self._arguments.run(self._kernel, self.tuning.threads, each)


class BackwardFields(Struct):
    """The gradients of a normalisation; all images have the layout of ``x``."""

    walk: ImageLoopFields
    x: Address
    """Input of the normalisation."""
    dy: Address
    dx: Output
    """Gradient of the input; may be the memory of ``dy``, as may ``behind``."""
    factors: Address
    """Factor of each channel; the channels' other numbers are arrays of the same shape."""
    offsets: Address
    mean: Address
    inverse: Address
    factor_gradients: Output
    offset_gradients: Output
    behind: OptionalAddress
    """Gradient between the norm and its factors and offsets."""


class _Channels:
    """Statistics and factors of a plane's channels."""

    def __init__(self, k: Kernel, f: BackwardFields, plane: Plane, *, relu: bool) -> None:
        self._k, self._f = k, f
        self.mean, self.inverse, self.given = (
            plane.numbers(k, row) for row in (f.mean, f.inverse, f.factors)
        )
        self.factor = self.inverse * self.given
        self._offset = plane.numbers(k, f.offsets) if relu else None

    def pixel(self, here: Word, plane: Plane) -> tuple[Vector, Vector]:
        """Return a vector of deviations, and the gradients that the rectifier let pass."""
        k, f = self._k, self._f
        away = plane.load(k, f.x + here) - self.mean
        dy = plane.load(k, f.dy + here)
        if self._offset is not None:
            zero = k.constant(0.0)
            dy = choose(fma(away, self.factor, self._offset) > zero, dy, zero)
        return away, dy

    def write(self, here: Word, plane: Plane, slopes: Vector, dy: Vector, *, behind: bool) -> None:
        """Write a vector of the gradient, and perhaps that behind the norm."""
        k, f = self._k, self._f
        plane.store(k, slopes, f.dx + here)
        if behind:
            plane.store(k, dy * self.given, f.behind + here)


@BackwardFields.kernel("normalization_gradient_planes")
def _gradient_planes_kernel(
    k: Kernel, f: BackwardFields, lanes: Lanes, *, relu: bool, stored: bool, behind: bool
) -> None:
    """Write the sums of each plane's gradients, and of their products with the deviations.

    With ``stored`` statistics, write the input's gradients too.
    """
    with each_plane(k, f.walk, lanes) as plane:
        channels, zero = _Channels(k, f, plane, relu=relu), k.constant(0.0)

        def add(
            at: Word, sums: Sequence[Vector], plane: Plane, channels: _Channels = channels
        ) -> list[Vector]:
            for array in (f.x, f.dy):
                k.prefetch(array + plane.following + at, 2)
            here = plane.first + at
            away, dy = channels.pixel(here, plane)
            if stored:
                channels.write(here, plane, dy * channels.factor, dy, behind=behind)
            return [sums[0] + dy, fma(away, dy, sums[1])]

        for place, total in enumerate(summed(k, f.walk, plane, [zero, zero], add)):
            k.store(total, plane.sums + place * k.vector_bytes)


@BackwardFields.kernel("normalization_gradient_sums")
def _gradient_sums_kernel(k: Kernel, f: BackwardFields, lanes: Lanes) -> None:
    """Write the gradients of factors and offsets, and the terms for the input's gradient."""
    numbers, zero, step = counts(k, f.walk), k.constant(0.0), PLANE_SUMS * k.vector_bytes
    with each_group(k, f.walk, lanes) as plane:
        channels = _Channels(k, f, plane, relu=False)
        with k.loop(f.walk.images, vectors=[zero, zero]) as image:
            at, (total, products) = plane.all_sums + image.i * step, image.vectors
            image.vectors = [total + k.load(at), products + k.load(at + k.vector_bytes)]
        total, products = image.vectors
        products = products * channels.inverse
        by = channels.factor * numbers.each
        k.store(-(total * by), plane.all_sums)
        k.store(-(products * by * channels.inverse), plane.all_sums + k.vector_bytes)
        plane.store_numbers(k, products, f.factor_gradients)
        plane.store_numbers(k, total, f.offset_gradients)


@BackwardFields.kernel("normalization_gradient")
def _gradient_kernel(
    k: Kernel, f: BackwardFields, lanes: Lanes, *, relu: bool, stored: bool, behind: bool
) -> None:
    def numbers(plane: Plane) -> tuple[_Channels, Vector, Vector]:
        level, slope = k.load(plane.all_sums), k.load(plane.all_sums + k.vector_bytes)
        return _Channels(k, f, plane, relu=relu), level, slope

    def write(here: Word, plane: Plane, numbers: tuple[_Channels, Vector, Vector]) -> None:
        channels, level, slope = numbers
        away, dy = channels.pixel(here, plane)
        slopes = dy * channels.factor
        if not stored:
            slopes = fma(away, slope, fma(dy, channels.factor, level))
        channels.write(here, plane, slopes, dy, behind=behind)

    each_vector(k, f.walk, lanes, numbers, write, [f.x, f.dy])


class NormalizationGradient(TunedKernel):
    """The gradients of input, factors and offsets, and perhaps the one behind the norm.

    Without ``learns``, those of factors and offsets are written by statistics of the batch alone.
    """

    kernel = "norm gradient"

    def __init__(
        self, forward: Normalization, *, behind: bool = False, learns: bool = True
    ) -> None:
        lanes, relu, stored = forward.lanes, forward.relu, forward.stored
        self.tuning, width, flags = forward.tuning, lanes.width, {"relu": relu, "stored": stored}
        kernels = []
        if learns or not stored:
            one = _gradient_planes_kernel(width, lanes, **flags, behind=stored and behind)
            kernels = [one, _gradient_sums_kernel(width, lanes)]
        if not (learns and stored):
            kernels.append(_gradient_kernel(width, lanes, **flags, behind=behind))
        self._kernels = kernels
        self._arguments = Arguments(
            BackwardFields.values(
                walk=image_loop_values(forward.images, lanes, forward.eps),
                mean=forward.mean,
                inverse=forward.inverse,
                behind=RUNTIME if behind else None,
            )
        )

    def __call__(
        self,
        images: Sequence[np.ndarray],
        parameters: tuple[np.ndarray, np.ndarray],
        gradients: tuple[np.ndarray, np.ndarray],
        sums: np.ndarray,
        behind: np.ndarray | None = None,
    ) -> None:
        """Write the gradients of the input and of the parameters, factors and offsets, (C,).

        ``images`` are the input, the output's gradient and the input's, which may be the same
        memory, as may the gradient behind the norm; ``sums`` are ``forward.sums_size`` elements.
        """
        names = "factors", "offsets", "factor_gradients", "offset_gradients", "walk.sums"
        each = dict(zip(("x", "dy", "dx"), images, strict=True))
        each |= dict(zip(names, (*parameters, *gradients, sums), strict=True))
        if behind is not None:
            each["behind"] = behind
        self._arguments.run(self._kernels, self.tuning.threads, each)
