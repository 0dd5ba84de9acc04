"""Filter transform, and its transpose for the gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    Struct,
    Values,
)
from demitasse.backends.kernels.language.words import FLOAT, INT, Vector, Word, chunk, minimum
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
    """A parameter and its transform."""

    weights: Address
    """Address of the parameter, in C order."""
    positions: Address
    """Address of the transformed parameter."""
    group_stride: Word
    """Elements from one group's values to the next's, at a position."""
    position_stride: Word
    """Elements from one position's values to the next's."""
    groups: Word
    """Number of groups."""
    inputs: Word
    """Inputs of a group."""
    outputs: Word
    """Outputs of a group."""
    weight_group_stride: Word
    """Elements of the parameter from one group to the next."""
    weight_input_stride: Word
    """Elements of the parameter from one input to the next."""
    weight_output_stride: Word
    """Elements of the parameter from one output to the next."""
    panel_table: Address
    """Address of the table of a group's panels: vectors and first output of each."""
    panels: Word
    """Number of panels of a group."""
    chunks: Word
    """For the gradient: of how many chunks values are summed; else 1."""
    chunk_stride: Word
    """Elements from one chunk's values to the next's."""


@cache
def _kernel(
    of: Filtering, width: int, *, flipped: bool = False, back: bool = False, past: bool = False
) -> int:
    """Return the address of a kernel for filters of these matrices.

    Args:
        of: The matrices.
        width: Filters of a vector.
        flipped: True to flip the filters.
        back: True for the transpose, from positions to taps.
        past: True to write with non-temporal stores; a vector is a cache line then.
    """
    options = f"{'flipped' if flipped else ''}{'past' if past else ''}"
    name = f"{'taps' if back else 'filters'}{of.name}x{width}{options}"
    down, across = (one.filter[:, ::-1] if flipped else one.filter for one in of)

    def write(module: Any) -> None:
        if back:
            _write_taps(module, name, (down, across), width)
        else:
            _write_filters(module, name, (down, across), width, past=past)

    return compiled(name, write, name)[name]


class _Place(NamedTuple):
    """A vector of filters of one channel, in the kernel.

    Attributes:
        output: Number of the first filter.
        taps: Address of its taps.
        position: Address of the vector at the first position.
    """

    output: Word
    taps: Word
    position: Word


@contextmanager
def _each_vector(k: Kernel, f: FilterFields) -> Iterator[_Place]:
    """Write a loop over vectors of filters of a channel; threads divide the channels."""
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
            yield _Place(
                output, f.weights + taps * FLOAT, f.positions + (values + place * k.width) * FLOAT
            )


Both = tuple[np.ndarray, np.ndarray]
"""The matrices of a filter's columns and of its rows. Shapes: (positions, taps)."""


def _write_filters(module: Any, name: str, of: Both, width: int, *, past: bool) -> None:
    (_, rows), (wide, columns) = (matrix.shape for matrix in of)
    k = Kernel(module, name, 1, width, exported=True)
    f, put = FilterFields.read(k), k.store_nontemporal if past else k.store
    last = f.outputs - 1
    with _each_vector(k, f) as (output, first, position):
        # beyond the last one, the last one again
        filters = [
            first + (minimum(output + n, last) - output) * f.weight_output_stride * FLOAT
            for n in range(width)
        ]
        taps = [k.gather([one + FLOAT * tap for one in filters]) for tap in range(rows * columns)]

        def tap(row: int, column: int, taps: Sequence[Vector] = taps) -> Vector:
            place: int = row * columns + column
            return taps[place]

        def store(row: int, column: int, value: Vector, position: Word = position) -> None:
            put(value, position + f.position_stride * FLOAT * (row * wide + column))

        times_both(k, of, tap, store)
    if past:
        k.fence()
    k.done()


def _write_taps(module: Any, name: str, of: Both, width: int) -> None:
    down, across = of
    (high, _), (wide, columns) = (matrix.shape for matrix in of)
    positions, taps = high * wide, down.shape[1] * columns
    k = Kernel(module, name, 1, width, exported=True)
    f, vector = FilterFields.read(k), k.vector_bytes
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
        with k.loop(minimum(width, f.outputs - output)) as filter_:
            target = first + filter_.i * f.weight_output_stride * FLOAT
            for tap in range(taps):
                number = k.load_float(result + tap * vector + filter_.i * FLOAT)
                k.store(number, target + FLOAT * tap)
    k.done()


def _values(tiling: WinogradSchedule, *, chunks: int = 1) -> Values:
    """Return the values of the fields.

    The outputs of the gradient of an input are the parameter's inputs.

    Args:
        tiling: The convolution.
        chunks: Of how many chunks values are summed.
    """
    groups, area = tiling.groups, tiling.filtering.taps
    flipped = tiling.computes == "input"
    inputs, outputs = tiling.channels // groups, tiling.filters // groups
    table = np.array(tiling.panels, np.int64)
    return FilterFields.values(
        weights=RUNTIME,
        positions=RUNTIME,
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
        chunks=chunks,
        chunk_stride=tiling.filter_size,
    )


class Filters:
    """Transformed filters of a convolution: matrices (positions, groups, inputs, outputs).

    Args:
        tiling: The convolution, or its input's gradient.
    """

    def __init__(self, tiling: WinogradSchedule) -> None:
        self._threads = tiling.threads
        flipped = tiling.computes == "input"
        self._kernel = partial(_kernel, tiling.filtering, tiling.width, flipped=flipped)
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


class FilterGradient:
    """Transform of the chunks' partial gradients, at the positions, to the parameter's gradient.

    Args:
        tiling: The convolution.
        chunks: Number of parts.
    """

    def __init__(self, tiling: WinogradSchedule, chunks: int) -> None:
        self._threads = tiling.threads
        self._kernel = _kernel(tiling.filtering, tiling.width, back=True)
        self._arguments = Arguments(_values(tiling, chunks=chunks))

    def __call__(self, positions: np.ndarray, weights: np.ndarray) -> None:
        """Write the gradient.

        Args:
            positions: The chunks' parts. Shape: (chunks * tiling.filter_size,) at least.
            weights: Output for the parameter's gradient, in C order.
        """
        self._arguments.run(
            self._kernel, self._threads, {"weights": weights, "positions": positions}
        )
