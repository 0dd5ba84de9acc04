"""Local response normalisation across and within channels, and its gradient; unit length.

A row of an image, or a plane of a vector of channels, is gone through three times, while it is in
the caches. What neighbours are summed of, squares or the gradient's ratios, is written to memory
with zeros around it. Nothing is kept from forward to backward.
"""

from collections.abc import Callable
from functools import reduce

import numpy as np

from demitasse.backends.kernels.bound import BoundKernel, each_vector
from demitasse.backends.kernels.images import Images, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    OptionalAddress,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Condition,
    Vector,
    Word,
    choose,
    fma,
    horizontal_sum,
    root,
)
from demitasse.backends.kernels.tuning import Tuning

BETA = 0.75
"""The exponent that kernels have: two square roots and a division."""

WIDEST = 15
"""Pixels of the side of a window within a channel at most; kernels write its sums out."""


class ResponseFields(Struct):
    """A normalisation or its gradient; all images have the layout of ``x``.

    Across channels, a region is a row of an image, and its lines are pixels. Within, a region is a
    plane of a vector of channels, and its lines are rows of pixels.
    """

    x: Address
    dy: OptionalAddress
    """The output's gradient."""
    y: Output
    """The output, or the input's gradient."""
    numbers: Address
    """Factor of the sums, what is added to them, and factor of the gradient."""
    images: Word
    image_bytes: Word
    regions: Word
    """Regions of an image."""
    region_bytes: Word
    lines: Word
    """Lines of a region."""
    line_bytes: Word
    vectors: Word
    """Whole vectors of a line."""
    vector_bytes: Word
    scratch: Address
    """Two stacks of lines for each thread, with zeros around them: across channels, each line has a
    vector of zeros before and behind it; within, there are lines of zeros above and below those of
    the first stack, and vectors of zeros beside those of the second."""
    scratch_bytes: Word
    """Bytes of a thread's scratch memory."""
    first: Word
    """Bytes to the first vector of the first stack that is not zeros."""
    first_line_bytes: Word
    second: Word
    """The same of the second stack."""
    second_line_bytes: Word


Write = Callable[[Word, Word, Word, Condition | None], None]
"""Takes a vector's place in images, and in both stacks, and the mask of its channels."""


@ResponseFields.kernel("local_response")
def _kernel(
    k: Kernel, f: ResponseFields, size: int, rest: int, *, within: bool, gradient: bool
) -> None:
    """Write the kernel; the last vector has ``rest`` channels, 0 for a whole vector."""
    rate, base, factor = (k.broadcast(f.numbers + FLOAT * place) for place in range(3))
    scratch = f.scratch + k.thread()[0] * f.scratch_bytes
    stacks = scratch + f.first, scratch + f.second
    shifts = range(-(size // 2), size // 2 + 1)
    step = k.vector_bytes if within else FLOAT
    last = k.lane_mask(rest) if rest else None

    def total(at: Word, step: Word | int) -> Vector:
        return reduce(Vector.__add__, [k.load(at + step * shift) for shift in shifts])

    def normalized(value: Vector, scale: Vector) -> Vector:
        inverse = 1.0 / root(scale)
        return value * (inverse * root(inverse))

    def square(at: Word, one: Word, _: Word, some: Condition | None) -> None:
        value = k.load(f.x + at, some)
        k.store(value * value, one, some)

    def add_lines(_: Word, one: Word, two: Word, some: Condition | None) -> None:
        """Within channels, write the sums of the first stack's lines to the second stack."""
        k.store(total(one, f.first_line_bytes), two, some)

    def normalize(at: Word, one: Word, two: Word, some: Condition | None) -> None:
        squares, value = total(two if within else one, step), k.load(f.x + at, some)
        scale = fma(squares, rate, base)
        if not gradient:
            k.store(normalized(value, scale), f.y + at, some)
            return
        dy = k.load(f.dy + at, some)
        direct = normalized(dy, scale)
        k.store(direct, f.y + at, some)
        k.store(direct * value / scale, one if within else two, some)

    def subtract(at: Word, _: Word, two: Word, some: Condition | None) -> None:
        direct, value = k.load(f.y + at, some), k.load(f.x + at, some)
        k.store(fma(-(total(two, step) * factor), value, direct), f.y + at, some)

    sums: list[Write] = [add_lines] if within else []
    passes: list[Write] = [square, *sums, normalize, *([*sums, subtract] if gradient else [])]

    def go_through(write: Write, start: Word, of_region: Condition | None) -> None:
        """Write a loop over a region."""
        with k.loop(f.lines) as line:

            def write_vector(number: Word, some: Condition | None) -> None:
                here = number * k.vector_bytes
                write(
                    start + line.i * f.line_bytes + number * f.vector_bytes,
                    stacks[0] + line.i * f.first_line_bytes + here,
                    stacks[1] + line.i * f.second_line_bytes + here,
                    some,
                )

            with k.loop(f.vectors) as vector:
                write_vector(vector.i, of_region)
            if last is not None and not within:
                write_vector(f.vectors, last)

    with k.loop(f.scratch_bytes, 0, k.vector_bytes) as vector:
        k.store(k.constant(0.0), scratch + vector.i)
    with k.parallel_loop(f.images, f.regions) as (image, region):
        start = image * f.image_bytes + region * f.region_bytes
        partial = choose(region + 1 < f.regions, 0, 1) if within and rest else k.word(0)
        with k.cases(partial) as case:
            for number, some in enumerate([None, last] if within and rest else [None]):
                case(number)
                for write in passes:
                    go_through(write, start, some)


def widest(width: int, *, within: bool) -> int:
    """Return the greatest size of windows."""
    return WIDEST if within else 2 * width + 1


def takes(images: Images, width: int, *, size: int, beta: float, within: bool) -> bool:
    """Return whether images have several contiguous channels, and windows fit."""
    fits = beta == BETA and size % 2 == 1 and size <= widest(width, within=within)
    return fits and width > 0 and images.channel_stride == 1 < images.shape[1]


class LocalResponse:
    """y = x * (k + alpha / count * sum of squares of ``count`` neighbours) ** -0.75.

    Neighbours are ``size`` channels or, ``within`` a channel, ``size`` by ``size`` pixels.

    Attributes:
        forward: Takes x, y and scratch memory.
        backward: Takes x, dy, dx, which is other memory, and scratch memory.
    """

    def __init__(
        self, images: Images, size: int, alpha: float, k: float, tuning: Tuning, *, within: bool
    ) -> None:
        width, (_, channels, rows, columns) = tuning.width, images.shape
        if not takes(images, width, size=size, beta=BETA, within=within):
            most = widest(width, within=within)
            message = (
                f"{channels} channels and windows of {size} were given; give several channels, "
                f"which come last, and odd windows of {most} at most"
            )
            raise ValueError(message)
        rate, half = alpha / (size**2 if within else size), size // 2
        vector_bytes, pixel_bytes = width * FLOAT, images.column_stride * FLOAT
        whole, rest = divmod(channels, width)
        vectors = whole + (rest > 0)
        if within:
            one, two = columns * vector_bytes, (columns + 2 * half) * vector_bytes
            first, behind = half * one, (rows + 2 * half) * one
            second, scratch_bytes = behind + half * vector_bytes, behind + rows * two
            loops = vectors, rows, columns
            steps = vector_bytes, images.row_stride * FLOAT, pixel_bytes
        else:
            one = two = (vectors + 2) * vector_bytes
            first, second = vector_bytes, vector_bytes + columns * one
            scratch_bytes = 2 * columns * one
            loops = rows, columns, whole
            steps = images.row_stride * FLOAT, pixel_bytes, vector_bytes

        def bound(*, gradient: bool) -> BoundKernel:
            values = ResponseFields.values(
                dy=RUNTIME if gradient else None,
                numbers=np.array([rate, k, 2 * rate * BETA], np.float32),
                images=images.shape[0],
                image_bytes=images.image_stride * FLOAT,
                **dict(zip(("regions", "lines", "vectors"), loops, strict=True)),
                **dict(zip(("region_bytes", "line_bytes", "vector_bytes"), steps, strict=True)),
                scratch_bytes=scratch_bytes,
                first=first,
                first_line_bytes=one,
                second=second,
                second_line_bytes=two,
            )
            return BoundKernel(
                "lrn" + " within" * within,
                _kernel(width, size, rest, within=within, gradient=gradient),
                values,
                tuning,
                scratch_size=tuning.threads * scratch_bytes // FLOAT,
            )

        self.forward, self.backward = bound(gradient=False), bound(gradient=True)


class UnitLengthFields(Struct):
    """Pixels with all their channels, in the input and in the output alike."""

    x: Address
    y: Output
    factors: Address
    """One for each channel."""
    eps: Address
    pixels: Word
    pixel_bytes: Word
    """Bytes from one pixel to the next."""
    channels: Word


@UnitLengthFields.kernel("unit_length")
def _unit_length_kernel(k: Kernel, f: UnitLengthFields) -> None:
    with k.parallel_loop(f.pixels) as [pixel]:
        start = pixel * f.pixel_bytes

        def add(at: Word, some: Condition | None, total: Vector) -> list[Vector]:
            value = k.load(f.x + start + at, some)
            return [fma(value, value, total)]

        [squares] = each_vector(k, f.channels, add, vectors=[k.constant(0.0)])
        length = root(horizontal_sum(squares) + k.broadcast(f.eps))

        def write(at: Word, some: Condition | None) -> None:
            unit = k.load(f.x + start + at, some) / length
            k.store(unit * k.load(f.factors + at, some), f.y + start + at, some)

        each_vector(k, f.channels, write)


class UnitLength(BoundKernel):
    """y = factor * x / sqrt(sum of x^2 + eps), the sum over the channels of a pixel.

    A call takes x, y, which has the layout of x and may be x, and factors, one for each channel.

    Raises:
        ValueError: Pixels do not follow each other, with their channels side by side.
    """

    def __init__(self, images: Images, eps: float, tuning: Tuning) -> None:
        need_layout(images.is_rows, images)
        n, channels, rows, columns = images.shape
        values = UnitLengthFields.values(
            eps=np.array([eps], np.float32),
            pixels=n * rows * columns,
            pixel_bytes=images.column_stride * FLOAT,
            channels=channels,
        )
        super().__init__("normalize", _unit_length_kernel(tuning.width), values, tuning)
