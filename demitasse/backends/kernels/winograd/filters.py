"""Filter transform, and its transpose for the gradient."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.bound import BoundKernel
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, INT, Vector, Word, chunk, minimum
from demitasse.backends.kernels.winograd import WinogradSchedule
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.transforms import times_both

LARGE = 16 << 20
"""Bytes of transformed filters that exceed every cache."""

LINE_BYTES = 64
"""Bytes of a cache line."""

AHEAD = 4
"""Prefetch distance of transformed values, in vectors: the processor's prefetcher follows fewer
streams than there are positions."""


class FilterFields(Struct):
    """A parameter in C order and its transform; inputs and outputs are a group's."""

    weights: Address
    positions: Address
    group_stride: Word
    """Elements from one group's values to the next's, at a position."""
    position_stride: Word
    groups: Word
    inputs: Word
    outputs: Word
    weight_group_stride: Word
    weight_input_stride: Word
    weight_output_stride: Word
    panel_table: Address
    """Vectors and first output of each panel of a group."""
    panels: Word
    chunks: Word
    """Number of chunks whose values are summed, for the gradient; else 1."""
    chunk_stride: Word


@contextmanager
def _each_vector(k: Kernel, f: FilterFields) -> Iterator[tuple[Word, Word, Word]]:
    """Write a loop over vectors of filters of a channel; threads divide the channels.

    A vector is the index of the first filter, and the addresses of its taps and of the vector at
    the first position.
    """
    begin, end = chunk(f.inputs, *k.thread())
    with k.loop(f.groups) as group, k.loop(f.panels) as panel:
        vectors, first = k.load_words(f.panel_table + panel.i * (2 * INT), 2)
        values = group.i * f.group_stride + first * f.inputs
        # a panel's rows lie one after the other, and so do the taps of a filter's channels
        with k.loop(end, begin) as channel, k.loop(vectors) as vector:
            output = first + vector.i * k.width
            place = channel.i * vectors + vector.i
            taps = (
                group.i * f.weight_group_stride
                + output * f.weight_output_stride
                + channel.i * f.weight_input_stride
            )
            first_taps = f.weights + taps * FLOAT
            yield output, first_taps, f.positions + (values + place * k.width) * FLOAT


@FilterFields.kernel("filters")
def _kernel(k: Kernel, f: FilterFields, of: Filtering, *, flipped: bool, past: bool) -> None:
    """Write the transform of filters, which are perhaps flipped.

    With ``past``, stores are non-temporal, and a vector is a cache line.
    """
    down, across = (one.filter[:, ::-1] if flipped else one.filter for one in of)
    (_, rows), (wide, columns) = down.shape, across.shape
    put, last = k.store_nontemporal if past else k.store, f.outputs - 1
    with _each_vector(k, f) as (output, first, position):
        # beyond the last one, the last one again
        filters = [
            first + (minimum(output + n, last) - output) * f.weight_output_stride * FLOAT
            for n in range(k.width)
        ]
        taps = [k.gather([one + FLOAT * tap for one in filters]) for tap in range(rows * columns)]

        def tap(row: int, column: int, taps: Sequence[Vector] = taps) -> Vector:
            place: int = row * columns + column
            return taps[place]

        def store(row: int, column: int, value: Vector, position: Word = position) -> None:
            put(value, position + f.position_stride * FLOAT * (row * wide + column))

        times_both(k, (down, across), tap, store)
    if past:
        k.fence()


@FilterFields.kernel("taps")
def _gradient_kernel(k: Kernel, f: FilterFields, of: Filtering) -> None:
    """Write the transpose of the transform, from positions to taps."""
    down, across = of.down.filter, of.across.filter
    (high, rows), (wide, columns) = down.shape, across.shape
    positions, taps, vector = high * wide, rows * columns, k.vector_bytes
    total, result = k.scratch(positions), k.scratch(taps)

    def load(row: int, column: int) -> Vector:
        return k.load(total + (row * wide + column) * vector)

    def store(row: int, column: int, value: Vector) -> None:
        k.store(value, result + (row * columns + column) * vector)

    with _each_vector(k, f) as (output, first, values):
        with k.loop(positions) as position:
            here = values + position.i * f.position_stride * FLOAT
            k.prefetch(here + AHEAD * vector)
            with k.loop(f.chunks, 1, vectors=[k.load(here)]) as one:
                more = k.load(here + one.i * f.chunk_stride * FLOAT)
                one.vectors = [one.vectors[0] + more]
            k.store(one.vectors[0], total + position.i * vector)
        times_both(k, (down.T, across.T), load, store)
        with k.loop(minimum(k.width, f.outputs - output)) as filter_:
            target = first + filter_.i * f.weight_output_stride * FLOAT
            for tap in range(taps):
                number = k.load_float(result + tap * vector + filter_.i * FLOAT)
                k.store(number, target + FLOAT * tap)


def _values(tiling: WinogradSchedule) -> Values:
    """Return the values of the fields.

    The outputs of the gradient of an input are the parameter's inputs.
    """
    groups, area = tiling.groups, tiling.filtering.taps
    flipped = tiling.computes == "input"
    inputs, outputs = tiling.channels // groups, tiling.filters // groups
    table = np.array(tiling.panels, np.int64)
    return FilterFields.values(
        group_stride=tiling.filter_group_stride,
        position_stride=tiling.filter_position_stride,
        groups=groups,
        inputs=inputs,
        outputs=outputs,
        weight_group_stride=inputs * outputs * area,
        weight_input_stride=outputs * area if flipped else area,
        weight_output_stride=area if flipped else inputs * area,
        panel_table=table,
        panels=len(table),
        chunks=tiling.chunks,
        chunk_stride=tiling.filter_size,
    )


class Filters:
    """Transformed filters of a convolution: matrices (positions, groups, inputs, outputs)."""

    def __init__(self, tiling: WinogradSchedule) -> None:
        self._threads = tiling.threads
        flipped = tiling.computes == "input"
        self._kernel = partial(_kernel, tiling.width, tiling.filtering, flipped=flipped)
        lines = tiling.width * FLOAT == LINE_BYTES  # halves of lines would be written twice
        self._past = lines and tiling.filter_size * FLOAT > LARGE
        self._arguments = Arguments(_values(tiling))

    def update(self, weights: np.ndarray, positions: np.ndarray) -> None:
        """Write the transforms of ``weights``, which are in C order.

        Shapes: positions (tiling.filter_size,).
        """
        each = {"weights": weights, "positions": positions}
        past = self._past and not address(positions) % LINE_BYTES
        self._arguments.run(self._kernel(past=past), self._threads, each)


def filter_gradient(tiling: WinogradSchedule) -> BoundKernel:
    """Return the transform of the chunks' gradients at the positions to the parameter's gradient.

    A call takes the gradient, in C order, and those of the chunks, (chunks * tiling.filter_size,).
    """
    kernel = _gradient_kernel(tiling.width, tiling.filtering)
    return BoundKernel("winograd", kernel, _values(tiling), tiling.tuning)
