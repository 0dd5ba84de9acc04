"""LSTM and RNN: all steps of sequences without Python between them, forward and backward.

A register tile is a block of hidden values of some sequences in one step. The gradient of a step
depends on the next step's: a thread computes some vectors of hidden values, each of some
sequences, in one pass over the weights. No sum is divided among threads, so their number changes
no bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel, threads_for
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    OptionalAddress,
    Struct,
)
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Condition,
    Vector,
    Word,
    choose,
    chunk,
    fma,
    maximum,
    minimum,
)
from demitasse.backends.kernels.math_functions import sigmoid, tanh
from demitasse.backends.kernels.tuning import Tuning

FEWEST_EACH = 1 << 16
"""Multiplications of a step for each thread at least: to meet others takes as long as these."""

MOST_ROWS = {4: {1: 8, 4: 6}, 8: {1: 8, 4: 2}, 16: {1: 8, 4: 6}}
"""Floats of a vector -> vectors of a sequence -> sequences whose sums fit into the registers."""

CHAINS = 8
"""Least number of independent sums, because an addition has a latency of some cycles."""


class StepFields(Struct):
    """Some steps of some sequences. All arrays are in C order."""

    weight: Address
    """Weights of the hidden state."""
    cont: Address
    """Factors of the states before each step, (steps, rows)."""
    first: Word
    """The first step."""
    last: Word
    """The end of the steps; backward, the last step."""
    steps: Word
    """Total number of steps."""
    rows: Word
    """Number of sequences."""
    few: Word
    """Sequences of a register tile."""
    size: Word
    """Hidden values of a sequence."""
    blocks: Word
    """Blocks of hidden values of a sequence."""


class Tile(NamedTuple):
    """Register tile: its step, its block of hidden values, and its first sequence."""

    step: Word
    block: Word
    row: Word


class Place(NamedTuple):
    """A vector of hidden values of one sequence in one step.

    Attributes:
        at: Bytes from the beginning of an array (rows, size).
        some: Mask of the vector's hidden values.
        cont: Factor of the states before the step.
        in_all: Bytes from the beginning of an array (steps, rows, size).
        in_gates: Bytes from the beginning of an array (steps, rows, gates * size), first gate.
    """

    at: Word
    some: Condition
    cont: Vector
    in_all: Word
    in_gates: Word


def _place_of(k: Kernel, f: StepFields, gates: int, step: Word, row: Word, vector: Word) -> Place:
    here, row_bytes, number = vector * k.vector_bytes, f.size * FLOAT, step * f.rows + row
    return Place(
        at=row * row_bytes + here,
        some=_lanes_of(k, f, vector),
        cont=k.broadcast(f.cont + number * FLOAT),
        in_all=number * row_bytes + here,
        in_gates=number * row_bytes * gates + here,
    )


def _lanes_of(k: Kernel, f: StepFields, vector: Word) -> Condition:
    return k.lane_mask(minimum(f.size - vector * k.width, k.width))


@contextmanager
def _each_row(
    k: Kernel, f: StepFields, step: Word, vectors: int,
    products: Callable[[Tile, int], Sequence[Vector]],
) -> Iterator[tuple[Tile, Word, Word]]:  # fmt: skip
    """Write a loop over the sequences of the thread's tiles of a step.

    ``products`` writes the products of the weights with a number of sequences, some ``vectors`` of
    each. Yields a tile, a sequence, and the address of its products.
    """
    most, row_bytes = MOST_ROWS[k.width][vectors], vectors * k.vector_bytes
    sums, groups = k.scratch(most * vectors), (f.rows + f.few - 1) // f.few
    first, end = chunk(f.blocks * groups, *k.thread())
    with k.loop(end, first) as loop:
        # alternate directions: the last weights are still in the first cache
        number = choose(step % 2 > 0, first + end - 1 - loop.i, loop.i)
        tile = Tile(step, number // groups, number % groups * f.few)
        count = minimum(f.few, f.rows - tile.row)
        with k.cases(count) as case:
            for rows in range(1, most + 1):
                case(rows)
                for place, total in enumerate(products(tile, rows)):
                    k.store(total, sums + place * k.vector_bytes)
        with k.loop(count) as one:
            yield tile, tile.row + one.i, sums + one.i * row_bytes


def _products(
    k: Kernel, size: Word, weights: Callable[[Word], Sequence[Vector]], states: Sequence[Word],
    count: int,
) -> list[Vector]:  # fmt: skip
    """Write sums of ``size`` products of numbers with vectors; return the first state's first.

    ``weights`` writes the ``count`` vectors of one number, given its index; ``states`` are the
    addresses of each sequence's numbers.
    """
    chains = count * len(states)
    unrolled = max(1, CHAINS // chains)
    zeros = [k.constant(0.0)] * chains

    def step(i: Word, sums: Sequence[Vector]) -> list[Vector]:
        vectors = weights(i)
        numbers = [k.broadcast(state + i * FLOAT) for state in states]
        pairs = [(number, vector) for number in numbers for vector in vectors]
        return [fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]

    whole = size // unrolled * unrolled
    with k.loop(whole, 0, unrolled, vectors=zeros * unrolled) as loop:
        loop.vectors = [
            total
            for place in range(unrolled)
            for total in step(loop.i + place, loop.vectors[place * chains : (place + 1) * chains])
        ]
    sums = loop.vectors[:chains]
    for place in range(1, unrolled):
        others = loop.vectors[place * chains : (place + 1) * chains]
        sums = [total + other for total, other in zip(sums, others, strict=True)]
    with k.loop(size, whole, vectors=sums) as rest:
        rest.vectors = step(rest.i, rest.vectors)
    return rest.vectors


class _RecurrentKernel(BoundKernel):
    """Base of the kernels over T steps of N sequences, with G gates for each of H hidden values.

    Args:
        shape: (T, N, G * H).
        vectors, floats: Vectors of a sequence whose sums are in registers; floats of a block.
    """

    def __init__(
        self, name: str, kernel: int, fields: type[StepFields], shape: tuple[int, ...],
        tuning: Tuning, *, gates: int, vectors: int, floats: int, **given: Any,
    ) -> None:  # fmt: skip
        self.steps, self.rows, wide = shape
        self.size = wide // gates
        most = MOST_ROWS[tuning.width][vectors]
        values = fields.values(
            first=RUNTIME,
            last=RUNTIME,
            steps=self.steps,
            rows=self.rows,
            few=-(-self.rows // -(-self.rows // most)),
            size=self.size,
            blocks=-(-self.size // floats),
            **given,
        )
        threads = threads_for(tuning, self.rows * wide * self.size, FEWEST_EACH)
        super().__init__(name, kernel, values, tuning, threads)


class ForwardFields(StepFields):
    """Steps of a cell, of which the first is -1 to prepare it.

    ``weight`` has the shape (gates, blocks, size, a vector's floats): a block is a vector of hidden
    values, filled up with zeros. Of an RNN there are no cells.
    """

    hidden: Address
    """Hidden states after each step, (steps, rows, size); written."""
    first_h: Address
    """Hidden states at the beginning, (rows, size)."""
    first_c: OptionalAddress
    """Cells at the beginning, (rows, size)."""
    last_h: Address
    """Hidden states at the end, possibly the same array; written."""
    last_c: OptionalAddress
    """Cells after the last step, possibly the same array; written in each step."""
    z: Address
    """Inputs of the gates, (steps, rows, gates * size); with ``cells`` they become the gates."""
    static: Address
    """Numbers that each sequence adds to the inputs in all steps, (rows, gates * size)."""
    static_bytes: Word
    """Bytes from one sequence's numbers to the next's; 0 if all have the same."""
    before: Address
    """Hidden states that steps begin with, (slots, rows, size); written."""
    slots: Word
    """Steps whose hidden states are kept: all, or the current and the next step."""
    cells: OptionalAddress
    """For gradients: cells that steps begin with, (steps, rows, size); written."""
    squashed: OptionalAddress
    """The tanh of the cells that steps end with, (steps, rows, size); written."""


GATES = {"LSTM": 4, "RNN": 1}
"""Gates of a cell; those of an LSTM are input, forget, output and new value."""


@ForwardFields.kernel("recurrence")
def _kernel(k: Kernel, f: ForwardFields, cell: str, *, keeps: bool) -> None:
    gates, row_bytes = GATES[cell], f.size * FLOAT

    def before(step: Word) -> Word:
        """Return the address of the hidden states that a step begins with, of the first row."""
        return f.before + step % f.slots * f.rows * row_bytes

    def products(tile: Tile, rows: int) -> list[Vector]:
        """Write the hidden states' contributions to the gates: (rows, gates)."""
        panel_bytes, first = f.size * k.vector_bytes, before(tile.step) + tile.row * row_bytes
        hidden = [first + row_bytes * row for row in range(rows)]
        panels = [f.weight + (f.blocks * gate + tile.block) * panel_bytes for gate in range(gates)]

        def weights(i: Word) -> list[Vector]:
            return [k.load(panel + i * k.vector_bytes) for panel in panels]

        return _products(k, f.size, weights, hidden, gates)

    with k.when(f.first < 0):
        begin, end = chunk(f.rows, *k.thread())
        with k.loop(end, begin) as each, k.loop(f.blocks) as block:
            place = _place_of(k, f, gates, k.word(0), each.i, block.i)
            h = k.load(f.first_h + place.at, place.some)
            k.store(h * place.cont, before(k.word(0)) + place.at, place.some)
            if cell == "LSTM":
                c = k.load(f.first_c + place.at, place.some)
                k.store(c, f.last_c + place.at, place.some)
    with (
        k.loop(f.last, maximum(f.first, 0)) as step,
        _each_row(k, f, step.i, gates, products) as (tile, row, sums),
    ):
        place = _place_of(k, f, gates, tile.step, row, tile.block)
        at, some = place.at, place.some
        ends = f.z + place.in_gates, f.static + row * f.static_bytes + tile.block * k.vector_bytes
        inputs = []
        for gate in range(gates):
            given, more = (k.load(end + row_bytes * gate, some) for end in ends)
            inputs.append(given + more + k.load(sums + gate * k.vector_bytes))
        h = _lstm(k, f, place, inputs, keeps=keeps) if cell == "LSTM" else tanh(inputs[0])
        k.store(h, f.hidden + place.in_all, some)
        with k.when(tile.step >= f.steps - 1):
            k.store(h, f.last_h + at, some)
        with k.when(tile.step < f.steps - 1):
            cont = k.broadcast(f.cont + ((tile.step + 1) * f.rows + row) * FLOAT)
            k.store(h * cont, before(tile.step + 1) + at, some)


def _lstm(
    k: Kernel, f: ForwardFields, place: Place, inputs: Sequence[Vector], *, keeps: bool
) -> Vector:
    """Write the step of an LSTM; return the hidden state."""
    some, last = place.some, f.last_c + place.at
    gates = i, forget, o, g = [*(sigmoid(value) for value in inputs[:3]), tanh(inputs[3])]
    before = k.load(last, some)
    c = place.cont * forget * before + i * g
    squashed = tanh(c)
    k.store(c, last, some)
    if keeps:
        for gate, value in enumerate(gates):
            k.store(value, f.z + place.in_gates + f.size * (FLOAT * gate), some)
        k.store(before, f.cells + place.in_all, some)
        k.store(squashed, f.squashed + place.in_all, some)
    return o * squashed


class SavedStates(NamedTuple):
    """Values that forward steps keep for the backward pass.

    These are the hidden states that steps begin with, and of an LSTM the cells that steps begin
    with and the tanh of the cells that steps end with. Shapes: (T, N, H).
    """

    before: np.ndarray
    cells: np.ndarray | None
    squashed: np.ndarray | None

    @classmethod
    def of(cls, cell: str, shape: tuple[int, int, int]) -> SavedStates:
        """Return memory for steps of this shape, (T, N, H)."""
        count = 3 if cell == "LSTM" else 1
        arrays = [aligned(math.prod(shape)).reshape(shape) for _ in range(count)]
        return cls(arrays[0], *(arrays[1:] or (None, None)))

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return sum(array.nbytes for array in self if array is not None)


class Recurrence(_RecurrentKernel):
    """T steps of N sequences, with G gates for each of H hidden values.

    Args:
        cell: "LSTM" or "RNN".
        z: The inputs of the gates; read in each call. With ``kept``, an LSTM's become the values of
            the gates. Shape: (T, N, G * H).
        static: Numbers that each sequence adds to its inputs in all steps; read in each call.
            Shape: (N, G * H).
        kept: Memory for the values that gradients need; None if there are none.

    A state has ``state_count`` arrays, of which the first is the hidden state.
    """

    def __init__(
        self,
        cell: str,
        z: np.ndarray,
        tuning: Tuning,
        *,
        static: np.ndarray | None = None,
        kept: SavedStates | None = None,
    ) -> None:
        gates, keeps = GATES[cell], kept is not None
        self.state_count = 2 if cell == "LSTM" else 1
        if kept is None:
            kept = SavedStates(aligned(2 * z[0].size // gates), None, None)
        self.nbytes = kept.nbytes
        absent: dict[str, None] = {} if cell == "LSTM" else {"first_c": None, "last_c": None}
        super().__init__(
            cell.lower(), _kernel(tuning.width, cell, keeps=keeps), ForwardFields, z.shape, tuning,
            gates=gates, vectors=gates, floats=tuning.width, z=z, **absent,
            static=aligned(z.shape[2]) if static is None else static,
            static_bytes=0 if static is None else static.strides[0],
            slots=z.shape[0] if keeps else 2, **kept._asdict(),
        )  # fmt: skip

    def run(
        self, weight: np.ndarray, cont: np.ndarray, begin: Sequence[np.ndarray],
        hidden: np.ndarray, end: Sequence[np.ndarray],
    ) -> None:  # fmt: skip
        """Compute all steps.

        Args:
            weight: Weights of the hidden state, (G, H, H) in blocks of a vector's hidden values,
                whose inputs are contiguous; the last block is filled up with zeros.
            cont: Factors of the states before each step. Shape: (T, N).
            begin: The states at the beginning. Shapes: (N, H).
            hidden: Output for the hidden states. Shape: (T, N, H).
            end: Output for the states at the end; may be ``begin``. Shapes: (N, H).
        """
        # threads meet between steps; other threads take a late thread's part
        ranges = [(-1, 0), *((step, step + 1) for step in range(self.steps))]
        for first, last in [(-1, self.steps)] if self.threads == 1 else ranges:
            self(weight, cont, first, last, hidden, *begin, *end)


VECTORS = 4
"""Vectors of hidden values in a block: as many sums of each sequence are in registers."""


class BackFields(StepFields):
    """Steps of a cell, from the last to the first.

    ``weight`` has the shape (gates * size, size). Of an RNN there are no cells.
    """

    dy: Address
    """Gradients of the hidden states from above, (steps, rows, size)."""
    dz: Address
    """Gradients of the gates' inputs, (steps, rows, gates * size); written."""
    known: Address
    """Values of the gates, (steps, rows, gates * size); of an RNN the hidden states."""
    cells: OptionalAddress
    """Cells that steps began with, (steps, rows, size)."""
    squashed: OptionalAddress
    """The tanh of the cells that steps ended with, (steps, rows, size)."""
    dc: OptionalAddress
    """Gradients of the cells that a step ends with, (rows, size); they become the gradients of the
    cells that it begins with."""


def _past_tanh(squashed: Vector, gradient: Vector) -> Vector:
    return (1.0 - squashed * squashed) * gradient


def _past_sigmoid(gate: Vector, gradient: Vector) -> Vector:
    return gradient * gate * (1.0 - gate)


def _lstm_gradient(
    k: Kernel, f: BackFields, place: Place, gates: Sequence[Vector], dh: Vector
) -> list[Vector]:
    """Write the gradient of the cell; return those of the gates' inputs."""
    some, (i, forget, o, g) = place.some, gates
    squashed = k.load(f.squashed + place.in_all, some)
    dc = k.load(f.dc + place.at, some) + _past_tanh(squashed, dh) * o
    before = dc * place.cont
    k.store(before * forget, f.dc + place.at, some)
    return [
        _past_sigmoid(i, dc * g),
        _past_sigmoid(forget, before * k.load(f.cells + place.in_all, some)),
        _past_sigmoid(o, dh * squashed),
        _past_tanh(g, dc * i),
    ]


@BackFields.kernel("retracing")
def _gradient_kernel(k: Kernel, f: BackFields, cell: str) -> None:
    gates, row_bytes = GATES[cell], f.size * FLOAT

    def products(tile: Tile, rows: int) -> list[Vector]:
        """Write the next step's gradients of a block of sequences: (rows, VECTORS)."""
        wide = row_bytes * gates
        behind = f.dz + ((tile.step + 1) * f.rows + tile.row) * wide
        gradients = [behind + wide * place for place in range(rows)]
        first = tile.block * VECTORS
        panel = f.weight + first * k.vector_bytes
        some = [_lanes_of(k, f, first + place) for place in range(VECTORS)]

        def weights(i: Word) -> list[Vector]:
            line = panel + i * row_bytes
            return [k.load(line + k.vector_bytes * n, part) for n, part in enumerate(some)]

        # the last step has no next step
        count = choose(tile.step < f.steps - 1, f.size * gates, k.word(0))
        return _products(k, count, weights, gradients, VECTORS)

    with k.loop(f.first + 1, f.last) as back:
        step = f.first + f.last - back.i
        with (
            _each_row(k, f, step, VECTORS, products) as (tile, row, sums),
            k.loop(VECTORS) as vector,
        ):
            total = k.load(sums + vector.i * k.vector_bytes)
            place = _place_of(k, f, gates, step, row, tile.block * VECTORS + vector.i)
            after = minimum(step + 1, f.steps - 1) * f.rows + row
            carried = total * k.broadcast(f.cont + after * FLOAT)
            dh = carried + k.load(f.dy + place.in_all, place.some)
            places = [place.in_gates + row_bytes * gate for gate in range(gates)]
            known = [k.load(f.known + at, place.some) for at in places]
            if cell == "LSTM":
                found = _lstm_gradient(k, f, place, known, dh)
            else:
                found = [_past_tanh(known[0], dh)]
            for at, gradient in zip(places, found, strict=True):
                k.store(gradient, f.dz + at, place.some)


class RecurrentBackward(_RecurrentKernel):
    """The gradients of T steps of N sequences, with G gates for each of H hidden values.

    Args:
        cell: "LSTM" or "RNN".
        dz: Output for the gradients of the inputs of the gates. Shape: (T, N, G * H).
        known: Values of the gates; of an RNN the hidden states. Shape: (T, N, G * H).
        kept: Values that the forward steps kept.
    """

    def __init__(
        self, cell: str, dz: np.ndarray, known: np.ndarray, kept: SavedStates, tuning: Tuning
    ) -> None:
        gates = GATES[cell]
        self._dc = np.zeros((dz.shape[1], dz.shape[2] // gates), np.float32)
        super().__init__(
            f"{cell.lower()} gradient", _gradient_kernel(tuning.width, cell), BackFields, dz.shape,
            tuning, gates=gates, vectors=VECTORS, floats=VECTORS * tuning.width, dz=dz, known=known,
            cells=kept.cells, squashed=kept.squashed, dc=self._dc,
        )  # fmt: skip

    def run(self, weight: np.ndarray, cont: np.ndarray, dy: np.ndarray) -> None:
        """Compute all steps.

        Shapes: weight of the hidden state (G * H, H), factors of the states before each step
        (T, N), gradients of the hidden states from above (T, N, H).
        """
        self._dc[...] = 0
        # threads meet between steps; other threads take a late thread's part
        ranges = [(step, step) for step in reversed(range(self.steps))]
        for first, last in [(self.steps - 1, 0)] if self.threads == 1 else ranges:
            self(weight, cont, first, last, dy)
