"""The gradients of the filters and the bias of small groups of channels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.grouped import GroupedSchedule
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import command_queue, compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, OptionalAddress
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Vector,
    Word,
    choose,
    chunk,
    fma,
    permuted,
)
from demitasse.backends.kernels.windows import Row, WindowFields, window_values

MOST_SUMS = {4: 24, 8: 12, 16: 24}
"""Floats of a vector -> sums that are in registers at a time."""

COLUMNS = 2
"""Integers of an entry of the table of vectors."""


class GradientFields(WindowFields):
    """The gradient of the filters; the output is its gradient here, which is read."""

    inside: Word
    """The first window of a row that sees no column outside the image."""
    inside_end: Word
    """End of the range, exclusive."""
    sums: Address
    """Address of the sums: for each vector and row of taps, channel after channel, tap after
    tap."""
    bias: OptionalAddress
    """Address of the sums of the gradient, vector after vector; 0 where they are not wanted."""
    vectors: Word
    """Number of vectors of filters."""
    vector_table: Address
    """Address of their table: for each, bytes from the beginning of an input pixel to what it
    reads, and from that of a gradient's pixel to its own."""


class Filter(NamedTuple):
    """Parameters of the filters that the kernel's code depends on.

    Attributes:
        rows: Rows of a window.
        taps: Columns of a window.
        stride: Columns from one window to the next.
        dilation: Columns from one tap to the next.
        channels: Channels of a group, of which several have a vector.
    """

    rows: int
    taps: int
    stride: int
    dilation: int
    channels: int

    def parts(self, width: int) -> Iterator[range]:
        """Yield channels whose sums are in registers at a time."""
        most = max(1, MOST_SUMS[width] // self.taps)
        for first in range(0, self.channels, most):
            yield range(first, min(first + most, self.channels))


@cache
def _kernel(width: int, shape: Filter) -> int:
    """Return the address of the kernel."""
    name = f"grouped_gradient{width}_{'x'.join(map(str, shape))}"
    return compiled(name, lambda module: _write(module, name, width, shape), name)[name]


def _write(module: Any, name: str, width: int, shape: Filter) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = GradientFields.read(k)
    row_bytes = shape.channels * shape.taps * k.vector_bytes
    begin, end = chunk(f.vectors * shape.rows, *k.thread())  # no sum is divided
    with k.loop(end, begin) as part:
        vector, line = part.i // shape.rows, part.i % shape.rows
        x, y = k.load_words(f.vector_table + vector * (COLUMNS * INT), COLUMNS)
        sums = f.sums + part.i * row_bytes
        with k.loop(f.images * f.y.rows) as place:
            row = f.row(place.i)
            with k.when((line < 1) & (f.bias > 0)):
                _add_gradients(k, row, row.output + y, f.bias + vector * k.vector_bytes)
            seen = row.top + row.down * line
            with k.when((seen > -1) & (seen < row.height)):
                source = row.image + seen * row.row_bytes + x
                for channels in shape.parts(width):
                    first = sums + channels.start * shape.taps * k.vector_bytes
                    _add_row(k, f, shape, row, source, row.output + y, channels, first)
    k.done()


def _add_gradients(k: Kernel, row: Row, dy: Word, target: Word) -> None:
    """Add the gradients of a row of outputs to their sum."""
    with k.loop(row.columns, vectors=[k.constant(0.0)]) as window:
        [total] = window.vectors
        window.vectors = [total + k.load(dy + window.i * row.output_bytes)]
    k.store(k.load(target) + window.vectors[0], target)


def _add_row(
    k: Kernel,
    f: GradientFields,
    shape: Filter,
    row: Row,
    source: Word,
    dy: Word,
    channels: range,
    sums: Word,
) -> None:
    """Add to the sums of some channels what a row of windows gives.

    It is summed by itself first: of long sums, parts are more exact.

    Args:
        k: The kernel.
        f: Its fields.
        shape: The filters.
        row: The row.
        source: Address of the first pixel of the row that is seen.
        dy: Address of the gradient of the first output.
        channels: The channels.
        sums: Address of their sums.
    """
    orders = [
        [lane // shape.channels * shape.channels + channel for lane in range(k.width)]
        for channel in channels
    ]
    totals = [k.constant(0.0)] * (len(orders) * shape.taps)

    def windows(first: Word | int, last: Word, totals: list[Vector], *, inside: bool) -> None:
        with k.loop(last, first, vectors=totals) as window:
            gradient = k.load(dy + window.i * row.output_bytes)
            for tap in range(shape.taps):
                column = window.i * shape.stride - row.left + tap * shape.dilation
                pixel = source + column * row.column_bytes
                if not inside:
                    there = (column > -1) & (column < row.width)
                    pixel = choose(there, pixel, row.zeros)
                numbers = k.load(pixel)
                for place, order in enumerate(orders):
                    at = place * shape.taps + tap
                    window.vectors[at] = fma(gradient, permuted(numbers, order), window.vectors[at])
        totals[:] = window.vectors

    windows(0, f.inside, totals, inside=False)
    windows(f.inside, f.inside_end, totals, inside=True)
    windows(f.inside_end, row.columns, totals, inside=False)
    for at, total in enumerate(totals):
        place = sums + at * k.vector_bytes
        k.store(k.load(place) + total, place)


def _inside(op: ops.Conv, columns: int, outputs: int) -> tuple[int, int]:
    """Return the first window of a row that sees only the image, and that after the last."""
    left, stride, reach = op.pad[1], op.stride[1], (op.kernel[1] - 1) * op.dilation[1]
    first = min(-(-left // stride), outputs)
    last = (columns - 1 - reach + left) // stride + 1
    return first, max(first, min(last, outputs))


class GroupedGradient:
    """The gradient of the filters of groups of which several have a vector.

    Args:
        parts: The convolution.
        x: Its input.
        y: The gradient of its output.
        bias: Whether there is a bias.

    Attributes:
        sums: The gradient of each vector's filters. Shape: (vectors, rows, channels, taps, width).

    Raises:
        ValueError: The channels of a vector are not contiguous.
    """

    def __init__(self, parts: GroupedSchedule, x: Images, y: Images, *, bias: bool = False) -> None:
        self.parts, width, op = parts, parts.width, parts.op
        if not (parts.shared and parts.fits(x) and parts.fits(y)):
            message = (
                f"groups of {parts.channels}, {x} and {y} were given; give groups of less than a "
                "vector, and images in which a vector's channels are contiguous"
            )
            raise ValueError(message)
        (rows, taps), channels = op.kernel, parts.channels
        firsts = np.array(parts.vectors)
        self.sums = aligned(len(firsts) * rows * channels * taps * width).reshape(
            -1, rows, channels, taps, width
        )
        self._order = np.add.outer(firsts, np.arange(width))
        self._kernel = _kernel(width, Filter(rows, taps, op.stride[1], op.dilation[1], channels))
        self._bias = aligned(len(firsts) * width).reshape(-1, width)
        inside, inside_end = _inside(op, parts.x[3], parts.y[3])
        self._arguments = Arguments(
            GradientFields.values(
                **window_values(op, x, y, aligned(width), gradient=True),
                inside=inside,
                inside_end=inside_end,
                sums=self.sums,
                bias=self._bias if bias else None,
                vectors=len(firsts),
                vector_table=np.stack([x.place(firsts), y.place(firsts)], axis=1) * FLOAT,
            )
        )

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        """Write the gradients.

        Args:
            source: The images, in the memory that ``x`` describes.
            dy: The gradient of the output, in the memory that ``y`` describes.
            weight: For the gradient of the weights, in C order.
            bias: For that of the bias, or None. Shape: (M,).
        """
        command_queue.enqueue(self._clear, (), None)
        each = {"x.at": source, "y.at": dy}
        self._arguments.run(self._kernel, self.parts.tuning.threads, each)
        command_queue.enqueue(self._unpack, (weight, bias), None)

    def _clear(self) -> None:
        self.sums[...] = self._bias[...] = 0.0

    def _unpack(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        _, rows, channels, taps, _ = self.sums.shape
        shape = self.parts.y[1], channels, rows, taps
        # a filter that is in two vectors has the same sums in both
        weight[: np.prod(shape)].reshape(shape)[self._order] = self.sums.transpose(0, 4, 2, 1, 3)
        if bias is not None:
            bias[self._order] = self._bias
