"""Depthwise convolution: the gradients of the input, the filters and the bias in one pass.

Each pixel of the input is multiplied by the same gradients of outputs as its own gradient sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise import DepthwiseSchedule
from demitasse.backends.kernels.depthwise.convolution import DepthwiseFilters
from demitasse.backends.kernels.images import Images, OutputFields, need_layout
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Output
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Word,
    choose,
    chunk,
    fma,
    maximum,
    minimum,
)
from demitasse.backends.kernels.tiles import Inside, Tiles, for_each_tile, inside
from demitasse.backends.kernels.windows import WindowFields, window_values

PIXELS = 8
"""Greatest number of pixels of the input in a tile, unless the stride is larger."""

PART_CHANNELS, PART_ROWS = 2048, 4
"""Channels of all parts together, and rows of each part at least: threads divide the parts, whose
number depends on shapes alone so that no bit depends on the threads."""


class Shape(NamedTuple):
    """Parameters that the kernel's code depends on.

    Attributes:
        pad: Columns of padding, modulo the stride.
        pixels: Pixels of a tile, a multiple of the stride.
        data: True if the gradient of the input is computed.
        weights: True if the gradient of the filters is computed.
        bias: True if the gradient of the bias is computed.
        offset: True if the gradient of the input has addends.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: int
    pixels: int
    data: bool
    weights: bool
    bias: bool
    offset: bool

    def __str__(self) -> str:
        sizes = *self.kernel, *self.stride, *self.dilation, self.pad, self.pixels
        flags = "_data" * self.data + "_weights" * self.weights + "_bias" * self.bias
        flags += "_offset" * self.offset
        return "x".join(map(str, sizes)) + flags

    @property
    def sums(self) -> int:
        """Sums of a vector of channels: of each tap, and of the bias."""
        return math.prod(self.kernel) + 1

    def taps(self, axis: int, phase: int) -> list[tuple[int, int]]:
        """Return the taps that reach a pixel, and for each the output, counted from the last.

        ``phase`` is the place of the pixel in the padded image, modulo the stride.
        """
        stride, dilation = self.stride[axis], self.dilation[axis]
        reached = [(tap, phase - tap * dilation) for tap in range(self.kernel[axis])]
        return [(tap, away // stride) for tap, away in reached if away % stride == 0]

    def columns(self) -> dict[int, list[tuple[int, int]]]:
        """Return the outputs of a row that reach a tile: for each, its taps and their pixels."""
        found: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(self.pixels):
            more, phase = divmod(pixel + self.pad, self.stride[1])
            for tap, away in self.taps(1, phase):
                found.setdefault(more + away, []).append((tap, pixel))
        return dict(sorted(found.items()))

    @property
    def begin(self) -> int:
        """The first of these outputs, counted from the tile's own."""
        return min(self.columns(), default=0)

    def tiles(self, columns: int, y_columns: int, left: int) -> Tiles:
        """Return the tiles of a row of the input, and of the outputs that reach each tile.

        ``left`` are the columns of padding before the first.
        """
        across, reached = self.stride[1], self.columns()
        span = max(reached) - self.begin + 1 if reached else 0
        tiles = []
        for at in range(0, columns, self.pixels):
            output = at // across + left // across + self.begin
            pixels, outputs = inside(at, self.pixels, columns), inside(output, span, y_columns)
            tiles.append((at, (pixels, outputs)))
        return Tiles(tuple(tiles))


class GradientFields(WindowFields):
    """The gradients; ``y`` has the gradients of the outputs."""

    dx: OutputFields
    filters: Address
    """Filters: for each vector, tap after tap."""
    sums: Output
    """Sums: for each part and vector, tap after tap, and the sum of the gradients."""
    offsets: Address
    """Addends of the input's gradient, one for each channel."""
    vectors: Word
    parts: Word
    """Parts of the rows of the input, each with sums of its own."""


@GradientFields.kernel("depthwise_gradients")
def _kernel(k: Kernel, f: GradientFields, shape: Shape, tiles: Tiles) -> None:
    each, down = shape.sums * k.vector_bytes, shape.stride[0]
    begin, end = chunk(f.parts * f.vectors, *k.thread())
    with k.loop(f.parts) as part:
        above = part.i * f.vectors
        vectors = maximum(begin - above, 0), minimum(end - above, f.vectors)
        sums = f.sums + above * each
        top, bottom = chunk(f.x.images * f.x.rows, part.i, f.parts)
        with k.when(vectors[0] < vectors[1]):
            with k.loop(vectors[1] * each, vectors[0] * each, k.vector_bytes) as place:
                k.store(k.constant(0.0), sums + place.i)
            if shape.bias:
                _add_gradients(
                    k, f, part.i, vectors, sums + (shape.sums - 1) * k.vector_bytes, each
                )
            with k.loop(bottom, top) as row:
                image, line = row.i // f.x.rows, row.i % f.x.rows
                padded = line + f.top
                with k.cases(padded % down) as case:
                    for phase in range(down):
                        case(phase)
                        taps = shape.taps(0, phase)
                        reached = [
                            (tap, _row(f, image, padded // down + away)) for tap, away in taps
                        ]
                        rows = Rows(f.x.row(image, line), f.dx.row(image, line), reached)
                        _add_row(k, f, shape, tiles, rows, vectors, sums)


def _add_gradients(
    k: Kernel, f: GradientFields, part: Word, vectors: tuple[Word, Word], sums: Word, each: int
) -> None:
    """Add the gradients of a part of the outputs to the sums of the bias.

    The sums of consecutive vectors are ``each`` bytes apart.
    """
    top, bottom = chunk(f.x.images * f.y.rows, part, f.parts)
    with k.loop(bottom, top) as row, k.loop(vectors[1], vectors[0]) as vector:
        place = minimum(vector.i * k.width, f.x.channels - k.width) * FLOAT
        begin = f.y.row(row.i // f.y.rows, row.i % f.y.rows) + place
        with k.loop(f.y.columns, vectors=[k.constant(0.0)]) as column:
            number = k.load(begin + column.i * f.y.column_stride * FLOAT)
            column.vectors = [column.vectors[0] + number]
        own = sums + vector.i * each
        k.store(k.load(own) + column.vectors[0], own)


def _row(f: GradientFields, image: Word, row: Word) -> Word:
    """Return the address of a row of gradients, or of zeros in the place of a row outside."""
    return choose((row > -1) & (row < f.y.rows), f.y.row(image, row), f.zeros)


class Rows(NamedTuple):
    """Addresses in a row of the input, in its gradient, and in the rows of outputs that reach it.

    Each of these belongs to a row of taps.
    """

    x: Word
    dx: Word
    reached: Sequence[tuple[int, Word]]


def _add_row(
    k: Kernel, f: GradientFields, shape: Shape, tiles: Tiles, rows: Rows,
    vectors: tuple[Word, Word], sums: Word,
) -> None:  # fmt: skip
    """Write the gradients of a row of the input, and add the row's products to ``sums``."""
    x_step, dx_step, y_step = (image.column_stride * FLOAT for image in (f.x, f.dx, f.y))
    if shape.weights:
        k.touch(rows.x, f.x.row_bytes)
    if shape.data:
        k.touch(rows.dx, f.dx.row_bytes)
    for _, row in rows.reached[:1]:  # which no row of the input has seen yet
        k.touch(row, f.y.row_bytes)

    def body(first: Word, inside: Inside) -> None:
        across = shape.stride[1]
        output = (first // across + f.left // across + shape.begin) * y_step
        reached = [(tap, row + output) for tap, row in rows.reached]
        tile = Rows(rows.x + first * x_step, rows.dx + first * dx_step, reached)
        _add_tile(k, f, shape, tile, inside, vectors, sums)

    for_each_tile(k, f.tiles, tiles, body)


def _add_tile(
    k: Kernel, f: GradientFields, shape: Shape, tile: Rows, inside: Inside,
    vectors: tuple[Word, Word], sums: Word,
) -> None:  # fmt: skip
    """Write the gradients of a tile, and add its products, vector after vector of channels."""
    (pixels, outputs), (_, wide), columns = inside, shape.kernel, shape.columns()
    x_step, dx_step, y_step = (image.column_stride * FLOAT for image in (f.x, f.dx, f.y))
    first, last = (vector * k.vector_bytes for vector in vectors)
    last_place, zero = (f.x.channels - k.width) * FLOAT, k.constant(0.0)
    with k.loop(last, first, k.vector_bytes) as vector:
        place = minimum(vector.i, last_place)  # begins early where channels fill no whole vectors
        filters, own = f.filters + vector.i * (shape.sums - 1), sums + vector.i * shape.sums
        gradients = dict.fromkeys(pixels, k.load(f.offsets + place) if shape.offset else zero)
        numbers = {i: k.load(tile.x + x_step * i + place) for i in pixels if shape.weights}
        for tap_row, row in tile.reached:
            places = [(tap_row * wide + tap) * k.vector_bytes for tap in range(wide)]
            weights = [k.load(filters + at) for at in places if shape.data]
            totals = [zero] * wide
            for j in outputs:
                dy = k.load(row + y_step * j + place)
                for tap, pixel in columns.get(shape.begin + j, ()):
                    if pixel in pixels and shape.data:
                        gradients[pixel] = fma(dy, weights[tap], gradients[pixel])
                    if pixel in pixels and shape.weights:
                        totals[tap] = fma(dy, numbers[pixel], totals[tap])
            if shape.weights:
                for at, total in zip(places, totals, strict=True):
                    k.store(k.load(own + at) + total, own + at)
        if shape.data:
            for i, gradient in gradients.items():
                k.store(gradient, tile.dx + dx_step * i + place)


class DepthwiseGradients(DepthwiseFilters):
    """The gradients of a depthwise convolution.

    Args:
        strips: The convolution's schedule.
        images: Those of the input, of the outputs' gradient, and of the input's gradient.
        weights: Whether the gradient of the filters is computed.
        data: Whether the gradient of the input is computed.
        bias: Whether the gradient of the bias is computed.
        offset: Whether the gradient of the input has addends, which ``take_offsets`` takes.

    Attributes:
        sums: The sums of all parts. Shape: (parts, vectors, taps and bias, width).
        nbytes: Bytes of the filters, the sums and the offsets.

    Raises:
        ValueError: Channels are not contiguous.
    """

    def __init__(
        self, strips: DepthwiseSchedule, images: tuple[Images, Images, Images], *,
        weights: bool = True, data: bool = True, bias: bool = False, offset: bool = False,
    ) -> None:  # fmt: skip
        self.strips, op, width, (x, y, dx) = strips, strips.op, strips.width, images
        (n, channels, height, columns), across = strips.x, op.stride[1]
        need_layout(all(one.fits(channels) for one in images), *images)
        pixels = min(
            range(across, max(across, PIXELS) + 1, across),
            key=lambda count: (math.ceil(columns / count) * (count + 1), -count),
        )
        shape = Shape(
            op.kernel, op.stride, op.dilation, op.pad[1] % across, pixels, data, weights, bias,
            offset,
        )  # fmt: skip
        parts = max(1, min(PART_CHANNELS // channels, n * height // PART_ROWS))
        super().__init__(strips)
        vectors = len(self.order)
        self.sums = aligned(parts * vectors * shape.sums * width)
        self.sums = self.sums.reshape(parts, vectors, shape.sums, width)
        self._offsets = aligned(channels)
        self.nbytes += self.sums.nbytes + self._offsets.nbytes
        tiles = shape.tiles(columns, strips.y[3], op.pad[1])
        self._kernel = _kernel(width, shape, tiles)
        values = GradientFields.values(
            **window_values(op, x, y, tiles, gradient=True), dx=OutputFields.of(dx),
            filters=self.filters, offsets=self._offsets, sums=self.sums, vectors=vectors,
            parts=parts,
        )  # fmt: skip
        self._arguments = Arguments(values)

    def take_offsets(self, offsets: np.ndarray) -> None:
        """Copy new offsets of the channels of the input's gradient, (C,); the first are zeros."""
        self._offsets[...] = offsets[: self._offsets.size]

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray | None = None,
        bias: np.ndarray | None = None, dx: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Write the gradients of the weights in C order, of the bias, (C,), and of the input."""
        each = {"x.at": source, "y.at": dy, "dx.at": self.sums if dx is None else dx}
        self._arguments.run(self._kernel, self.strips.tuning.threads, each)
        if weight is not None:
            call_recorder.call(self._unpack, weight, bias)

    def _unpack(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        sums = self.sums.sum(axis=0)
        # a channel that is in two vectors has the same sums in both
        weight[self.order] = sums[:, :-1]
        if bias is not None:
            bias[self.order[:, 0] // self.order.shape[1]] = sums[:, -1]
