"""Copies of filters in the order that a kernel reads, and sums of the parts of their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel, own_vectors, threads_for
from demitasse.backends.kernels.language import call_recorder, structs
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.values import FLOAT, INT, Word, minimum, transposed
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.storage import narrowed

if TYPE_CHECKING:
    from demitasse.backends.kernels.igemm import IgemmSchedule
    from demitasse.backends.kernels.language.values import Condition

Order = Literal["", "by_filter", "by_term"]
"""Order of filters: panels; filter after filter, terms side by side; or term after term."""


class FilterFields(structs.Struct):
    """Filters."""

    filters: structs.Address
    filter_bytes: Word
    """Bytes from one filter, or from one term, to the next of filters that lie so."""
    filter_count: Word


def pack_panel(
    k: Kernel, f: FilterFields, order: Order, panel: Word, vectors: int, term: Word,
    length: Word, into: Word, places: Word | None = None,
) -> None:  # fmt: skip
    """Copy some terms of a panel's filters, each to its place; padding is left as it is."""
    panel_bytes, first = vectors * k.vector_bytes, panel * (vectors * k.width)

    def target(at: Word) -> Word:
        if places is None:
            return into + at * panel_bytes
        return into + k.load_word(places + at * INT)

    if order == "by_term":
        some = [k.lane_mask(f.filter_count - first - k.width * j) for j in range(vectors)]
        source = f.filters + term * f.filter_bytes + first * FLOAT
        with k.loop(length) as one:
            at, other = source + one.i * f.filter_bytes, target(one.i)
            for j in range(vectors):
                value = k.load(at + k.vector_bytes * j, some[j])
                k.store(value, other + k.vector_bytes * j)
        return
    with k.loop(vectors) as vector:
        first, beside = first + vector.i * k.width, vector.i * k.vector_bytes
        numbers = [minimum(first + i, f.filter_count - 1) for i in range(k.width)]
        rows = [f.filters + number * f.filter_bytes + term * FLOAT for number in numbers]
        with k.loop(length // k.width) as square:
            at = square.i * k.width
            columns = transposed([k.load(row + at * FLOAT) for row in rows])
            for i, column in enumerate(columns):
                k.store(column, target(at + i) + beside)
        with k.loop(length, length // k.width * k.width) as one:
            k.store(k.gather([row + one.i * FLOAT for row in rows]), target(one.i) + beside)


class PackFields(FilterFields):
    """Filters in an order of their own, and in panels."""

    terms: Word
    places: structs.Address
    """Bytes from the beginning of a panel to each term."""
    panels: Word
    packed: structs.Output


@PackFields.kernel("pack_filters")
def _pack_kernel(k: Kernel, f: PackFields, order: Order, vectors: int) -> None:
    with k.parallel_loop(f.panels) as [panel]:
        into = f.packed + panel * f.terms * (vectors * k.vector_bytes)
        pack_panel(k, f, order, panel, vectors, k.word(0), f.terms, into, f.places)


class FilterPacking:
    """A copy of filters into panels, whose padding has any numbers.

    Args:
        weights: Filters (M, C, taps) with the strides of those of all calls.
    """

    def __init__(self, schedule: IgemmSchedule, weights: np.ndarray) -> None:
        self._schedule = schedule
        _, c, taps = weights.shape
        by_filter, by_channel, by_tap = (stride // FLOAT for stride in weights.strides)
        terms = np.add.outer(by_tap * np.arange(taps), by_channel * np.arange(c)).reshape(-1)
        places = terms.argsort()  # of the terms in memory, each in a panel
        order: Order = ""
        stride = by_filter
        if np.array_equal(terms[places], np.arange(terms.size)):
            order = "by_filter"
        elif by_filter == taps == 1:
            order, stride = "by_term", by_channel
        self._kernel = _pack_kernel(schedule.width, order, schedule.vectors) if order else None
        self._arguments = structs.Arguments(
            PackFields.values(
                filter_bytes=stride * FLOAT,
                filter_count=schedule.filters,
                terms=terms.size,
                places=places * (schedule.panel * FLOAT),
                panels=schedule.panels,
            )
        )

    def __call__(self, weights: np.ndarray, packed: np.ndarray) -> None:
        """Copy weights, in bfloat16 if the schedule is; ``packed`` are zeros where padded.

        Shapes: (M, C, taps), (panels * terms * filters of a panel,).
        """
        if self._schedule.tuning.bf16:
            call_recorder.call(self._round, weights, packed)
        else:
            self._copy(weights, packed)

    def _round(self, weights: np.ndarray, packed: np.ndarray) -> None:
        schedule, (_, c, taps) = self._schedule, weights.shape
        floats = aligned(schedule.panels * taps * c * schedule.panel)
        self._copy(weights, floats)
        packed[...] = _pairs(floats.reshape(-1, taps, c, schedule.panel)).reshape(-1)

    def _copy(self, weights: np.ndarray, packed: np.ndarray) -> None:
        if self._kernel:
            threads = min(self._schedule.tuning.threads, self._schedule.panels)
            self._arguments.run(self._kernel, threads, {"filters": weights, "packed": packed})
        else:
            call_recorder.call(self._copy_by_panel, weights, packed)

    def _copy_by_panel(self, weights: np.ndarray, packed: np.ndarray) -> None:
        schedule, (m, c, taps) = self._schedule, weights.shape
        by_term = packed.reshape(schedule.panels, taps, c, schedule.panel)
        for panel, first in enumerate(range(0, m, schedule.panel)):
            some = weights[first : first + schedule.panel]
            by_term[panel, ..., : len(some)] = some.transpose(2, 1, 0)


def _pairs(filters: np.ndarray) -> np.ndarray:
    """Return filters rounded to bfloat16, two channels in each float.

    Shapes: (panels, taps, C, panel) -> (panels, taps, ceil(C / 2), panel).
    """
    panels, taps, channels, panel = filters.shape
    lower, upper = np.zeros((2, panels, taps, -(-channels // 2), panel), np.uint32)
    lower[...] = narrowed(filters[:, :, ::2], "bfloat16")
    upper[:, :, : channels // 2] = narrowed(filters[:, :, 1::2], "bfloat16")
    both: np.ndarray = lower | upper << 16
    return both.view(np.float32)


FEWEST_EACH = 1 << 11
"""Elements that each thread gathers at least."""


class GatherFields(structs.Struct):
    """Elements of a source that has each in several parts."""

    count: Word
    places: structs.Address
    """Bytes from the beginning of a part to each element; zeros fill the last vector."""
    parts: Word
    part_bytes: Word
    source: structs.Address
    target: structs.Output


@GatherFields.kernel("gather")
def _gather_kernel(k: Kernel, f: GatherFields) -> None:
    def body(at: Word, some: Condition | None) -> None:
        places = k.load_words(f.places + at * (INT // FLOAT), k.width)
        elements = [f.source + place for place in places]
        with k.loop(f.parts, 1, vectors=[k.gather(elements)]) as part:
            moved, [total] = part.i * f.part_bytes, part.vectors
            part.vectors = [total + k.gather([element + moved for element in elements])]
        k.store(part.vectors[0], f.target + at, some)

    own_vectors(k, f.count, body)


class Gather(BoundKernel):
    """Copy of the elements at ``places``, or their sums over ``parts`` of the source, in order.

    A call takes source and target. ``places`` are indices in a part, of so many elements.
    """

    def __init__(self, places: np.ndarray, tuning: Tuning, parts: int = 1, size: int = 0) -> None:
        table = np.zeros(places.size + -places.size % tuning.width, np.int64)
        table[: places.size] = places.reshape(-1) * FLOAT
        values = GatherFields.values(
            count=places.size, places=table, parts=parts, part_bytes=size * FLOAT
        )
        threads = threads_for(tuning, places.size * parts, FEWEST_EACH)
        super().__init__("gather", _gather_kernel(tuning.width), values, tuning, threads)


class OrderedFilters:
    """A copy of filters whose weights have the indices ``order`` in C order.

    Attributes:
        filters: The filters, in the shape of the order.
        nbytes: Bytes of the filters.
    """

    recorded = ("update",)

    def __init__(self, order: np.ndarray, tuning: Tuning) -> None:
        self.filters = aligned(order.size).reshape(order.shape)
        self.nbytes, self._gather = self.filters.nbytes, Gather(order, tuning)

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights."""
        self._gather(weights, self.filters)


def part_sums(sums: np.ndarray, order: np.ndarray, places: np.ndarray, tuning: Tuning) -> Gather:
    """Return the sums of parts of the same shape, by the index ``order`` of each in the target.

    ``places`` are their indices in a part. Several of one index in the target are equal.
    """
    table = np.zeros(order.max() + 1, np.int64)
    table[order] = places.reshape(order.shape)
    return Gather(table, tuning, len(sums), sums[0].size)
