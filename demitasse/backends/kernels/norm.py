"""Normalisation by the statistics of a batch, with the rectifier after it, in training.

The vectors are channels. Each image is read once for its mean and its sum of squared deviations.
Images are combined in a fixed order, so results do not depend on the number of threads. Backward
recomputes the rectifier's mask rather than keeping it. Each pass is two kernels, so no kernel has
a barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

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
    minimum,
    rectified,
    root,
)
from demitasse.backends.kernels.tuning import TunedKernel, Tuning

WIDEST = 4
"""Vectors of a block of channels at most: those of longer ones lie too far apart to walk along."""

WIDEST_REST = 8
"""The same where the last vector is a part of one, for want of other code."""


def takes(images: Images, width: int) -> bool:
    """Return whether images have whole vectors of contiguous channels, pixel behind pixel."""
    return images.has_whole_vectors(width) and _dense(images) and images.block <= WIDEST * width


def has_rest(images: Images, width: int) -> bool:
    """Return whether all channels lie side by side, and the last vector is a part of one.

    They are walked along, too, where a batch is measured: the library has slow code for most, and
    for none a ReLU with it.
    """
    last = images.block == images.shape[1] > width > 0 and images.shape[1] % width > 0
    return last and _dense(images) and images.block <= WIDEST_REST * width


def _dense(images: Images) -> bool:
    return images.row_stride == images.shape[3] * images.column_stride


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
    k: Kernel, count: Word, stride: Word, start: Sequence[Vector],
    step: Callable[[Word, Sequence[Vector]], list[Vector]],
) -> list[Vector]:  # fmt: skip
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
    need_layout(takes(images, width) or has_rest(images, width), images)
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
def _planes_kernel(k: Kernel, f: ForwardFields, *, rest: bool) -> None:
    """Write each plane's mean and its sum of squared deviations."""
    numbers, stride, zero = counts(k, f.walk), f.walk.pixel_stride * FLOAT, k.constant(0.0)
    with each_plane(k, f.walk, rest=rest) as plane:
        about, away, squares = _deviations(k, f, plane, numbers, stride, ahead=True)
        by = away * numbers.each_pixel
        k.store(about + by, plane.sums)
        # rounding must not make it negative
        k.store(clamp_min(fma(-away, by, squares), zero), plane.sums + k.vector_bytes)


@ForwardFields.kernel("normalization")
def _kernel(k: Kernel, f: ForwardFields, *, relu: bool, rest: bool) -> None:
    numbers, stride = counts(k, f.walk), f.walk.pixel_stride * FLOAT
    own = k.scratch(2)
    with each_plane(k, f.walk, rest=rest) as plane:
        with k.when(plane.begins):
            _join(k, f, plane, numbers, own)
        mean, factor = k.load(own), k.load(own + k.vector_bytes)
        offset = plane.load(k, f.offsets + plane.channels)
        with k.loop(f.walk.pixels) as pixel:
            at = plane.first + pixel.i * stride
            k.prefetch(f.x + plane.following + pixel.i * stride, 2)
            value = fma(plane.load(k, f.x + at) - mean, factor, offset)
            plane.store(k, rectified(value, k.constant(0.0)) if relu else value, f.y + at)


def _deviations(
    k: Kernel, f: ForwardFields | PlaneFields, plane: Plane, numbers: Counts, stride: Word, *,
    ahead: bool,
) -> tuple[Vector, Vector, Vector]:  # fmt: skip
    """Return an approximate mean, the sum of deviations from it, and the sum of their squares.

    With ``ahead``, the next plane is prefetched.
    """
    zero, first = k.constant(0.0), f.x + plane.first
    some = minimum(f.walk.pixels, FIRST_PIXELS)
    [total] = summed(
        k, some, stride, [zero], lambda at, sums: [sums[0] + plane.load(k, first + at)]
    )
    about = total * numbers.first_pixels

    def add(at: Word, sums: Sequence[Vector]) -> list[Vector]:
        if ahead:
            k.prefetch(f.x + plane.following + at, 2)
        away = plane.load(k, first + at) - about
        return [sums[0] + away, fma(away, away, sums[1])]

    away, squares = summed(k, f.walk.pixels, stride, [zero, zero], add)
    return about, away, squares


def _join(k: Kernel, f: ForwardFields, plane: Plane, numbers: Counts, own: Word) -> None:
    """Write the statistics of all images; keep the mean and what deviations are multiplied by."""
    zero, step = k.constant(0.0), 2 * k.vector_bytes
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
    k.store(mean, own)
    k.store(inverse * plane.load(k, f.factors + plane.channels), own + k.vector_bytes)
    with k.when(plane.image < 1):
        for value, target in ((mean, f.mean), (variance, f.variance), (inverse, f.inverse)):
            plane.store(k, value, target + plane.channels)


class Normalization(TunedKernel):
    """y = (x - mean) / sqrt(variance + eps) * factor + offset, and perhaps max(y, 0); NaN stays.

    Mean and variance are those of each channel in the batch. Input and output have one layout.

    Attributes:
        mean, variance: Statistics of the last batch. Shapes: (C,).
        inverse: 1 / sqrt(variance + eps). Shape: (C,).
        rest: True if the last vector of channels is partial.
        sums_size: Elements of scratch memory for a call.
    """

    kernel = "norm"

    def __init__(self, images: Images, eps: float, tuning: Tuning, *, relu: bool) -> None:
        self.images, self.eps, self.tuning, self.relu = images, eps, tuning, relu
        self.mean, self.variance, self.inverse = (aligned(images.shape[1]) for _ in range(3))
        self.sums_size, self.rest = sums_size(images, tuning.width), has_rest(images, tuning.width)
        self._kernels = (
            _planes_kernel(tuning.width, rest=self.rest),
            _kernel(tuning.width, relu=relu, rest=self.rest),
        )
        self._arguments = Arguments(
            ForwardFields.values(
                walk=image_loop_values(images, tuning.width, eps),
                mean=self.mean,
                variance=self.variance,
                inverse=self.inverse,
            )
        )

    def __call__(
        self, source: np.ndarray, target: np.ndarray, factors: np.ndarray, offsets: np.ndarray,
        sums: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the statistics, and ``target``, which may be ``source``."""
        each = {
            "x": source, "y": target, "factors": factors, "offsets": offsets, "walk.sums": sums,
        }  # fmt: skip
        for kernel in self._kernels:
            self._arguments.run(kernel, self.tuning.threads, each)


class PlaneFields(Struct):
    """Planes that are normalised separately; the output has the layout of ``x``."""

    walk: ImageLoopFields
    x: Address
    y: Output
    deviations: Output
    """Divisor of each channel of each image."""


@PlaneFields.kernel("plane_norm")
def _plane_norm_kernel(k: Kernel, f: PlaneFields) -> None:
    numbers, stride = counts(k, f.walk), f.walk.pixel_stride * FLOAT
    zero, row_bytes = k.constant(0.0), f.walk.groups * k.vector_bytes
    with each_plane(k, f.walk) as plane:
        about, away, squares = _deviations(k, f, plane, numbers, stride, ahead=False)
        by = away * numbers.each_pixel
        variance = clamp_min(fma(-away, by, squares) * numbers.each_pixel, zero)
        mean, deviation = about + by, root(variance) + numbers.eps
        k.store(deviation, f.deviations + plane.image * row_bytes + plane.channels)
        with k.loop(f.walk.pixels) as pixel:
            at = plane.first + pixel.i * stride
            k.store((k.load(f.x + at) - mean) / deviation, f.y + at)


class PlaneNorm(TunedKernel):
    """y = (x - mean) / (sqrt(variance) + eps), of each channel of each image; NaN stays.

    The divisors of the last call are ``deviations``, (N, C).
    """

    kernel = "plane norm"

    def __init__(self, images: Images, eps: float, tuning: Tuning) -> None:
        self.tuning, self._kernel = tuning, _plane_norm_kernel(tuning.width)
        self.deviations = aligned(images.shape[0] * images.shape[1]).reshape(images.shape[:2])
        walk = image_loop_values(images, tuning.width, eps)
        self._arguments = Arguments(PlaneFields.values(walk=walk, deviations=self.deviations))

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write ``y``, which may be ``x``."""
        each: dict[str, np.ndarray | None] = {"x": x, "y": y, "walk.sums": None}
        self._arguments.run(self._kernel, self.tuning.threads, each)


KEPT = 2
"""Vectors that a thread keeps of the channels it is at."""


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
        self._k, self._f, self._plane = k, f, plane
        self.mean, self.inverse, self.given = (
            plane.load(k, address + plane.channels) for address in (f.mean, f.inverse, f.factors)
        )
        self.factor = self.inverse * self.given
        self._offset = plane.load(k, f.offsets + plane.channels) if relu else None

    def pixel(self, at: Word) -> tuple[Vector, Vector]:
        """Return a pixel's deviation, and the gradient that the rectifier let pass."""
        k, f, plane = self._k, self._f, self._plane
        for array in (f.x, f.dy):
            k.prefetch(array + plane.following + at, 2)
        away = plane.load(k, f.x + plane.first + at) - self.mean
        dy = plane.load(k, f.dy + plane.first + at)
        if self._offset is not None:
            zero = k.constant(0.0)
            dy = choose(fma(away, self.factor, self._offset) > zero, dy, zero)
        return away, dy


@BackwardFields.kernel("normalization_gradient_planes")
def _gradient_planes_kernel(k: Kernel, f: BackwardFields, *, relu: bool, rest: bool) -> None:
    """Write the sums of each plane's gradients, and of their products with the deviations."""
    stride = f.walk.pixel_stride * FLOAT
    with each_plane(k, f.walk, rest=rest) as plane:
        channels, zero = _Channels(k, f, plane, relu=relu), k.constant(0.0)

        def add(at: Word, sums: Sequence[Vector], channels: _Channels = channels) -> list[Vector]:
            away, dy = channels.pixel(at)
            return [sums[0] + dy, fma(away, dy, sums[1])]

        for place, total in enumerate(summed(k, f.walk.pixels, stride, [zero, zero], add)):
            k.store(total, plane.sums + place * k.vector_bytes)


@BackwardFields.kernel("normalization_gradient")
def _gradient_kernel(k: Kernel, f: BackwardFields, *, relu: bool, rest: bool, behind: bool) -> None:
    numbers, stride = counts(k, f.walk), f.walk.pixel_stride * FLOAT
    own = k.scratch(KEPT)
    with each_plane(k, f.walk, rest=rest) as plane:
        channels = _Channels(k, f, plane, relu=relu)
        with k.when(plane.begins):
            _join_gradients(k, f, plane, channels, numbers, own)
        level, slope = k.load(own), k.load(own + k.vector_bytes)
        with k.loop(f.walk.pixels) as pixel:
            at = pixel.i * stride
            away, dy = channels.pixel(at)
            slopes = fma(away, slope, fma(dy, channels.factor, level))
            plane.store(k, slopes, f.dx + plane.first + at)
            if behind:
                plane.store(k, dy * channels.given, f.behind + plane.first + at)


def _join_gradients(
    k: Kernel, f: BackwardFields, plane: Plane, channels: _Channels, numbers: Counts, own: Word
) -> None:
    """Write the gradients of factors and offsets; keep the terms for the input's gradient."""
    zero, step = k.constant(0.0), 2 * k.vector_bytes
    with k.loop(f.walk.images, vectors=[zero, zero]) as image:
        at, (total, products) = plane.all_sums + image.i * step, image.vectors
        image.vectors = [total + k.load(at), products + k.load(at + k.vector_bytes)]
    total, products = image.vectors
    products = products * channels.inverse
    by = channels.factor * numbers.each
    k.store(-(total * by), own)
    k.store(-(products * by * channels.inverse), own + k.vector_bytes)
    with k.when(plane.image < 1):
        plane.store(k, products, f.factor_gradients + plane.channels)
        plane.store(k, total, f.offset_gradients + plane.channels)


class NormalizationGradient(TunedKernel):
    """The gradients of input, factors and offsets, and perhaps the one behind the norm."""

    kernel = "norm gradient"

    def __init__(self, forward: Normalization, *, behind: bool = False) -> None:
        images, width = forward.images, forward.tuning.width
        self.tuning = forward.tuning
        flags = {"relu": forward.relu, "rest": forward.rest}
        self._kernels = (
            _gradient_planes_kernel(width, **flags),
            _gradient_kernel(width, **flags, behind=behind),
        )
        self._arguments = Arguments(
            BackwardFields.values(
                walk=image_loop_values(images, width, forward.eps),
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
        for kernel in self._kernels:
            self._arguments.run(kernel, self.tuning.threads, each)
