"""The gradients of the filters and the bias of small groups of channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.grouped import GroupedSchedule
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import command_queue
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
    """Sums: for each vector and row of taps, channel after channel, tap after tap."""
    bias: OptionalAddress
    """Sums of the gradient, vector after vector; 0 if there is no bias."""
    vectors: Word
    """Number of vectors of filters."""
    vector_table: Address
    """Columns: bytes from the beginning of an input pixel to the channels read, and from the
    beginning of a gradient's pixel to the vector's channels."""


class Filter(NamedTuple):
    """Parameters of the filters that the kernel's code depends on; ``channels`` of a group."""

    rows: int
    taps: int
    stride: int
    dilation: int
    channels: int

    def __str__(self) -> str:
        return "x".join(map(str, self))

    def parts(self, width: int) -> Iterator[range]:
        """Yield channels whose sums are in registers at a time."""
        most = max(1, MOST_SUMS[width] // self.taps)
        for first in range(0, self.channels, most):
            yield range(first, min(first + most, self.channels))


@GradientFields.kernel("grouped_gradient")
def _kernel(k: Kernel, f: GradientFields, shape: Filter) -> None:
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
                for channels in shape.parts(k.width):
                    first = sums + channels.start * shape.taps * k.vector_bytes
                    _add_row(k, f, shape, row, source, row.output + y, channels, first)


def _add_gradients(k: Kernel, row: Row, dy: Word, target: Word) -> None:
    """Add the gradients of a row of outputs to their sum."""
    with k.loop(row.columns, vectors=[k.constant(0.0)]) as window:
        [total] = window.vectors
        window.vectors = [total + k.load(dy + window.i * row.output_bytes)]
    k.store(k.load(target) + window.vectors[0], target)


def _add_row(
    k: Kernel, f: GradientFields, shape: Filter, row: Row, source: Word, dy: Word,
    channels: range, sums: Word,
) -> None:  # fmt: skip
    """Add the products of a row of windows to the sums of some channels.

    The products are summed by themselves first: sums of partial sums are more exact. The row of the
    input begins at ``source``, the gradient of the output at ``dy``.
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
    """The gradient of the filters of groups of which several have a vector, and of the bias.

    Attributes:
        sums: The gradient of each vector's filters. Shape: (vectors, rows, channels, taps, width).
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
        """Write the gradients of the weights, in C order, and of the bias, (M,)."""
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
