"""Filter transform, and its transpose for the gradient."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import product

import numpy as np

from demitasse.backends.kernels.bound import BoundKernel
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Struct, Values
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Vector,
    Word,
    choose,
    chunk,
    minimum,
)
from demitasse.backends.kernels.winograd import WinogradSchedule
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.transforms import times_both

AHEAD = 4
"""Prefetch distance of transformed values, in vectors: the processor's prefetcher follows fewer
streams than there are positions."""

COLUMNS, INPUT_COLUMNS = 6, 3
"""Integers of an entry of the table of panels, and of inputs."""


class FilterFields(Struct):
    """A parameter in C order and its transform; inputs and outputs are a group's."""

    positions: Address
    weights: Address
    position_bytes: Word
    inputs: Word
    input_table: Address
    """Columns: bytes from a filter's taps to those of each input; 1 if a filter lacks the last row,
    and column."""
    weight_output_bytes: Word
    panels: Word
    """Number of panels of all groups."""
    panel_table: Address
    """Columns: vectors; outputs of the group from the panel's first; bytes to the values at the
    first position, and to the first output's taps; 1 if filters lack the last row, and column."""
    chunks: Word
    """Number of chunks whose values are summed, for the gradient."""
    chunk_bytes: Word


@contextmanager
def _each_vector(k: Kernel, f: FilterFields) -> Iterator[tuple[Word, Word, Word, list[Word]]]:
    """Write a loop over vectors of filters of a channel; threads divide the channels.

    A vector is the number of its filters and those after it, and the addresses of the first
    filter's taps and of the vector at the first position. Of the words behind these, one is more
    than 0 where filters lack the last row, the other where they lack the last column.
    """
    begin, end = chunk(f.inputs, *k.thread())
    with k.loop(f.panels) as panel:
        entry = k.load_words(f.panel_table + panel.i * (COLUMNS * INT), COLUMNS)
        vectors, outputs, values, weights, no_row, no_column = entry
        # a panel's rows lie one after the other, and so do the taps of a filter's channels
        with k.loop(end, begin) as channel, k.loop(vectors) as vector:
            output = vector.i * k.width
            source = f.input_table + channel.i * (INPUT_COLUMNS * INT)
            taps, row, column = k.load_words(source, INPUT_COLUMNS)
            taps = weights + taps + output * f.weight_output_bytes
            place = values + (channel.i * vectors + vector.i) * k.vector_bytes
            lacks = [no_row + row, no_column + column]
            yield outputs - output, f.weights + taps, f.positions + place, lacks


@FilterFields.kernel("filters")
def _kernel(k: Kernel, f: FilterFields, of: Filtering, *, flipped: bool) -> None:
    """Write the transform of filters, which are perhaps flipped."""
    down, across = (one.filter[:, ::-1] if flipped else one.filter for one in of)
    wide, columns = across.shape
    zero, taps = k.scratch(1), k.scratch(of.taps)
    k.store(k.constant(0.0), zero)
    with _each_vector(k, f) as (count, first, values, lacks):
        # beyond the last one, the last one again
        filters = [
            first + minimum(count - 1, lane) * f.weight_output_bytes for lane in range(k.width)
        ]
        for tap, (place, lacking) in enumerate(_taps(of, lacks)):
            places = [one + place for one in filters]
            for lack in lacking:
                places = [choose(lack > 0, zero, one) for one in places]
            k.store(k.gather(places), taps + tap * k.vector_bytes)

        def load(row: int, column: Word | int) -> Vector:
            return k.load(taps + (row * columns + column) * k.vector_bytes)

        def store(row: Word | int, column: int, value: Vector) -> None:
            k.store(value, values + f.position_bytes * (row * wide + column))

        times_both(k, (down, across), load, store)


@FilterFields.kernel("taps")
def _gradient_kernel(k: Kernel, f: FilterFields, of: Filtering) -> None:
    """Write the transpose of the transform, from positions to taps."""
    down, across = of.down.filter, of.across.filter
    (wide, columns), vector = across.shape, k.vector_bytes
    total, result = k.scratch(of.positions), k.scratch(of.taps)

    def load(row: int, column: Word | int) -> Vector:
        return k.load(total + (row * wide + column) * vector)

    def store(row: Word | int, column: int, value: Vector) -> None:
        k.store(value, result + (row * columns + column) * vector)

    with _each_vector(k, f) as (count, first, values, lacks):
        with k.loop(of.positions) as position:
            here = values + position.i * f.position_bytes
            k.prefetch(here + AHEAD * vector)
            with k.loop(f.chunks, 1, vectors=[k.load(here)]) as one:
                one.vectors = [one.vectors[0] + k.load(here + one.i * f.chunk_bytes)]
            k.store(one.vectors[0], total + position.i * vector)
        times_both(k, (down.T, across.T), load, store)
        with k.loop(minimum(count, k.width)) as filter_:
            target = first + filter_.i * f.weight_output_bytes
            for tap, (place, lacking) in enumerate(_taps(of, lacks)):
                number = k.load_float(result + tap * vector + filter_.i * FLOAT)
                with k.when(sum(lacking, k.word(0)) < 1) if lacking else nullcontext():
                    k.store(number, target + place)


def _taps(of: Filtering, lacks: list[Word]) -> Iterator[tuple[int, list[Word]]]:
    """Return bytes to each tap, and words of which one is more than 0 where the tap is missing."""
    (down, across), row = of.stride, of.across.window
    for y, x in product(range(of.down.taps), range(of.across.taps)):
        ends = zip((y, x), of, lacks, strict=True)
        lacking = [
            one for at, axis, one in ends if at == axis.taps - 1 and axis.last < axis.filters
        ]
        yield FLOAT * (y * down * row + x * across), lacking


def _window_filters(of: Filtering) -> list[tuple[int, int, int]]:
    """Return bytes to each filter of a window; 1 if a row, a column is missing."""
    (down, across), row = of, of.across.window
    return [
        (FLOAT * (y * row + x), int(i >= down.last), int(j >= across.last))
        for (i, y), (j, x) in product(enumerate(down.firsts), enumerate(across.firsts))
    ]


def _values(schedule: WinogradSchedule) -> Values:
    """Return the values of the fields.

    The outputs of the gradient of an input are the parameter's inputs.
    """
    of, read, written = schedule.filtering, _window_filters(schedule.filtering), [(0, 0, 0)]
    if schedule.phases > 1:
        read, written = written, read
    inputs, outputs = schedule.channels // schedule.groups, schedule.filters // schedule.groups
    planes, plane_bytes = range(schedule.depth.taps), math.prod(of.window) * FLOAT
    channels, outputs = inputs // len(planes) // len(read), outputs // len(written)
    tap_bytes = len(planes) * plane_bytes
    input_bytes, output_bytes = tap_bytes, channels * tap_bytes
    if schedule.computes == "input":
        planes, input_bytes, output_bytes = planes[::-1], outputs * tap_bytes, tap_bytes
    places = [
        (plane * plane_bytes + start + i * input_bytes, *lacks)
        for plane in planes
        for start, *lacks in read
        for i in range(channels)
    ]
    rows = []
    for panel in schedule.panels:
        group, phase = divmod(panel.part, len(written))
        start, *lacks = written[phase]
        first = group * channels * outputs * tap_bytes + start + panel.first * output_bytes
        rows.append((panel.vectors, outputs - panel.first, panel.start * FLOAT, first, *lacks))
    return FilterFields.values(
        position_bytes=schedule.filter_position_stride * FLOAT,
        inputs=inputs,
        input_table=np.array(places, np.int64),
        weight_output_bytes=output_bytes,
        panels=len(rows),
        panel_table=np.array(rows, np.int64),
        chunks=schedule.chunks,
        chunk_bytes=schedule.filter_size * FLOAT,
    )


def filter_transform(schedule: WinogradSchedule) -> BoundKernel:
    """Return the transform of filters to matrices (positions, groups, inputs, outputs).

    A call takes the transformed filters, (schedule.filter_size,), and the weights, in C order.
    """
    kernel = _kernel(schedule.width, schedule.filtering, flipped=schedule.computes == "input")
    return BoundKernel("winograd", kernel, _values(schedule), schedule.tuning)


def filter_gradient(schedule: WinogradSchedule) -> BoundKernel:
    """Return the transform of the chunks' gradients at the positions to the parameter's gradient.

    A call takes the gradients of the chunks, (chunks * schedule.filter_size,), and the parameter's,
    in C order.
    """
    kernel = _gradient_kernel(schedule.width, schedule.filtering)
    return BoundKernel("winograd", kernel, _values(schedule), schedule.tuning)
