"""LSTM and RNN: all steps of sequences without Python between them, forward and backward.

A register tile is a block of hidden values of some sequences in one step. The gradient of a step
depends on the next step's: a thread computes some vectors of hidden values, each of some
sequences, in one pass over the weights. No sum is divided among threads, so their number changes
no bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import RUNTIME, Address, Arguments, Struct, Values
from demitasse.backends.kernels.language.words import (
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
from demitasse.backends.kernels.tuning import TunedKernel, Tuning

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
    """Register tile, with its number of sequences ``rows``."""

    step: Word
    block: Word
    row: Word
    rows: Word


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
def _each_tile(
    k: Kernel, f: StepFields, step: Word, most: int, multiply: Callable[[Tile, int], None]
) -> Iterator[Tile]:
    """Write a loop over the thread's tiles of a step, of at most ``most`` sequences.

    ``multiply`` writes the products of the weights with a number of sequences.
    """
    groups = (f.rows + f.few - 1) // f.few
    first, end = chunk(f.blocks * groups, *k.thread())
    with k.loop(end, first) as loop:
        # alternate directions: the last weights are still in the first cache
        number = choose(step % 2 > 0, first + end - 1 - loop.i, loop.i)
        block, row = number // groups, number % groups * f.few
        tile = Tile(step, block, row, minimum(f.few, f.rows - row))
        with k.cases(tile.rows) as case:
            for rows in range(1, most + 1):
                case(rows)
                multiply(tile, rows)
        yield tile


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


class _RecurrentKernel(TunedKernel):
    """Base of the kernels over T steps of N sequences, with G gates for each of H hidden values."""

    _kernel: int
    _arguments: Arguments

    def __init__(self, kind: str, shape: tuple[int, ...], gates: int, tuning: Tuning) -> None:
        self._kind, self.tuning, (self._steps, self._rows, wide) = kind, tuning, shape
        self._size = wide // gates
        products = self._rows * wide * self._size
        self._threads = max(1, min(tuning.threads, products // FEWEST_EACH))

    def _values(self, fields: type[StepFields], vectors: int, floats: int, **given: Any) -> Values:
        """Return the values of the fields, for vectors of a sequence and floats of a block."""
        most, rows = MOST_ROWS[self.width][vectors], self._rows
        return fields.values(
            first=RUNTIME,
            last=RUNTIME,
            steps=self._steps,
            rows=rows,
            few=-(-rows // -(-rows // most)),
            size=self._size,
            blocks=-(-self._size // floats),
            **given,
        )

    def _run(self, first: int, last: int, threads: int, each: Mapping[str, np.ndarray]) -> None:
        self._arguments.run(self._kernel, threads, {**each, "first": first, "last": last})

    @property
    def code(self) -> str:
        return f"{self._kind} llvm:{self.tuning.instructions}"


class ForwardFields(StepFields):
    """Steps of an RNN, of which the first is -1 to prepare it.

    ``weight`` has the shape (gates, blocks, size, a vector's floats): a block is a vector of hidden
    values, filled up with zeros.
    """

    z: Address
    """Inputs of the gates, (steps, rows, gates * size)."""
    static: Address
    """Numbers that each sequence adds to the inputs in all steps, (rows, gates * size)."""
    static_bytes: Word
    """Bytes from one sequence's numbers to the next's; 0 if all have the same."""
    before: Address
    """Hidden states that steps begin with, (slots, rows, size); written."""
    slots: Word
    """Steps whose hidden states are kept: all, or the current and the next step."""
    hidden: Address
    """Hidden states after each step, (steps, rows, size); written."""
    first_h: Address
    """Hidden states at the beginning, (rows, size)."""
    last_h: Address
    """Hidden states at the end, possibly the same array; written."""


class LstmFields(ForwardFields):
    """Steps of an LSTM."""

    first_c: Address
    """Cells at the beginning, (rows, size)."""
    last_c: Address
    """Cells after the last step, possibly the same array; written in each step."""


class LearningLstmFields(LstmFields):
    """Steps of an LSTM that saves values for gradients."""

    cells: Address
    """Cells that steps begin with, (steps, rows, size); written."""
    squashed: Address
    """The tanh of the cells that steps end with, (steps, rows, size); written."""


class RnnCell:
    """h = tanh(z), in a kernel; the base of other cells.

    ``states`` are the fields of the states at the beginning, and of those at the end.
    """

    gates = 1
    states: tuple[str, ...] = ("first_h", "last_h")
    fields: type[ForwardFields] = ForwardFields
    f: ForwardFields

    def __init__(self, k: Kernel, f: ForwardFields) -> None:
        self._k, self.f = k, f

    def begin(self, place: Place) -> None:
        """Write the state of the first step, beside the hidden state."""

    def step(self, place: Place, inputs: Sequence[Vector]) -> Vector:
        """Write a step; return the hidden state."""
        [z] = inputs
        return tanh(self._k, z)


class LstmCell(RnnCell):
    """Gates input, forget, output and new value."""

    gates = 4
    states = ("first_h", "first_c", "last_h", "last_c")
    fields = LstmFields
    f: LstmFields

    def begin(self, place: Place) -> None:
        k, at, some = self._k, place.at, place.some
        k.masked_store(k.masked_load(self.f.first_c + at, some), self.f.last_c + at, some)

    def step(self, place: Place, inputs: Sequence[Vector]) -> Vector:
        k, cell = self._k, self.f.last_c + place.at
        *opened, new = inputs
        i, forget, o = (sigmoid(k, value) for value in opened)
        c = place.cont * forget * k.masked_load(cell, place.some) + i * tanh(k, new)
        k.masked_store(c, cell, place.some)
        return o * tanh(k, c)


class LearningLstmCell(LstmCell):
    """LSTM cell that saves values for gradients; ``z`` becomes the values of the gates."""

    fields = LearningLstmFields
    f: LearningLstmFields

    def step(self, place: Place, inputs: Sequence[Vector]) -> Vector:
        k, f, some = self._k, self.f, place.some
        *opened, new = inputs
        gates = [*(sigmoid(k, value) for value in opened), tanh(k, new)]
        for gate, value in enumerate(gates):
            k.masked_store(value, f.z + place.in_gates + f.size * (FLOAT * gate), some)
        i, forget, o, g = gates
        before = k.masked_load(f.last_c + place.at, some)
        c = place.cont * forget * before + i * g
        squashed = tanh(k, c)
        k.masked_store(before, f.cells + place.in_all, some)
        k.masked_store(c, f.last_c + place.at, some)
        k.masked_store(squashed, f.squashed + place.in_all, some)
        return o * squashed


CELLS: Mapping[str, type[RnnCell]] = {"LSTM": LstmCell, "RNN": RnnCell}

LEARNING: Mapping[str, type[RnnCell]] = {"LSTM": LearningLstmCell, "RNN": RnnCell}
"""Cells that save values for gradients; an RNN's gradients need only its hidden states."""


def _kernel(cell: str, width: int, *, learns: bool) -> int:
    sort = (LEARNING if learns else CELLS)[cell]

    def write(k: Kernel, f: ForwardFields) -> None:
        _write(k, sort(k, f))

    name = f"{'learning' if learns else 'recurrence'}_{cell.lower()}"
    return sort.fields.kernel(name)(write)(width)


def _write(k: Kernel, cell: RnnCell) -> None:
    f, most = cell.f, MOST_ROWS[k.width][cell.gates]
    with k.when(f.first < 0):
        _begin(k, cell)
    sums = k.scratch(most * cell.gates)

    def multiply(tile: Tile, rows: int) -> None:
        """Write the hidden states' contributions to the gates: (rows, gates)."""
        row_bytes, panel_bytes = f.size * FLOAT, f.size * k.vector_bytes
        first = _before(f, tile.step) + tile.row * row_bytes
        hidden = [first + row_bytes * row for row in range(rows)]
        panels = [
            f.weight + (f.blocks * gate + tile.block) * panel_bytes for gate in range(cell.gates)
        ]

        def weights(i: Word) -> list[Vector]:
            return [k.load(panel + i * k.vector_bytes) for panel in panels]

        for place, total in enumerate(_products(k, f.size, weights, hidden, cell.gates)):
            k.store(total, sums + place * k.vector_bytes)

    with (
        k.loop(f.last, maximum(f.first, 0)) as step,
        _each_tile(k, f, step.i, most, multiply) as tile,
        k.loop(tile.rows) as one,
    ):
        here = sums + one.i * (cell.gates * k.vector_bytes)
        totals = [k.load(here + gate * k.vector_bytes) for gate in range(cell.gates)]
        _step(k, cell, tile, tile.row + one.i, totals)


def _begin(k: Kernel, cell: RnnCell) -> None:
    f = cell.f
    with k.loop(f.rows) as row, k.loop(f.blocks) as block:
        place = _place_of(k, f, cell.gates, k.word(0), row.i, block.i)
        h = k.masked_load(f.first_h + place.at, place.some)
        k.masked_store(h * place.cont, _before(f, k.word(0)) + place.at, place.some)
        cell.begin(place)


def _before(f: ForwardFields, step: Word) -> Word:
    """Return the address of the hidden states that a step begins with, of the first sequence."""
    return f.before + step % f.slots * f.rows * f.size * FLOAT


def _step(k: Kernel, cell: RnnCell, tile: Tile, row: Word, totals: Sequence[Vector]) -> None:
    """Write the step of a sequence's block, given the hidden state's contribution to each gate."""
    f = cell.f
    place = _place_of(k, f, cell.gates, tile.step, row, tile.block)
    z, gate_bytes = f.z + place.in_gates, f.size * FLOAT
    static = f.static + row * f.static_bytes + tile.block * k.vector_bytes
    inputs = []
    for gate, total in enumerate(totals):
        given, more = (k.masked_load(at + gate_bytes * gate, place.some) for at in (z, static))
        inputs.append(given + more + total)
    h = cell.step(place, inputs)
    k.masked_store(h, f.hidden + place.in_all, place.some)
    with k.when(tile.step >= f.steps - 1):
        k.masked_store(h, f.last_h + place.at, place.some)
    with k.when(tile.step < f.steps - 1):
        cont = k.broadcast(f.cont + ((tile.step + 1) * f.rows + row) * FLOAT)
        k.masked_store(h * cont, _before(f, tile.step + 1) + place.at, place.some)


class SavedStates(NamedTuple):
    """Values that forward steps keep for the backward pass.

    These are the hidden states that steps begin with, and of an LSTM the cells that steps begin
    with and the tanh of the cells that steps end with. Shapes: (T, N, H).
    """

    before: np.ndarray
    cells: np.ndarray
    squashed: np.ndarray

    @classmethod
    def of(cls, cell: str, shape: tuple[int, int, int]) -> SavedStates:
        """Return memory for steps of this shape, (T, N, H)."""
        sizes = [math.prod(shape), *[math.prod(shape) if cell == "LSTM" else 0] * 2]
        return cls(*(aligned(size).reshape(shape if size else 0) for size in sizes))


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
        self.cell = (LEARNING if kept else CELLS)[cell]
        super().__init__(cell.lower(), z.shape, self.cell.gates, tuning)
        self._kernel = _kernel(cell, tuning.width, learns=kept is not None)
        before = kept.before if kept else aligned(2 * self._rows * self._size)
        self.state_count, self.nbytes = len(self.cell.states) // 2, before.nbytes
        more = {"cells": kept.cells, "squashed": kept.squashed} if kept and cell == "LSTM" else {}
        values = self._values(
            self.cell.fields,
            self.cell.gates,
            tuning.width,
            z=z,
            static=aligned(z.shape[2]) if static is None else static,
            static_bytes=0 if static is None else static.strides[0],
            before=before,
            slots=self._steps if kept else 2,
            **more,
        )
        self._arguments = Arguments(values)

    def __call__(
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
        states = dict(zip(self.cell.states, [*begin, *end], strict=True))
        each = {"weight": weight, "cont": cont, "hidden": hidden, **states}
        if self._threads == 1:
            self._run(-1, self._steps, 1, each)
            return
        # threads meet between steps; other threads take a late thread's part
        self._run(-1, 0, 1, each)
        for step in range(self._steps):
            self._run(step, step + 1, self._threads, each)


OUTPUT_FEWEST_EACH = 1 << 14
"""Elements of a thread at least: to meet others takes as long as to compute so many."""


class TanhFields(Struct):
    """Numbers that become their tanh."""

    x: Address
    count: Word


@TanhFields.kernel("squashing")
def _tanh_kernel(k: Kernel, f: TanhFields) -> None:
    begin, end = chunk((f.count + k.width - 1) // k.width, *k.thread())
    with k.loop(end, begin) as vector:
        at = vector.i * k.vector_bytes
        some = k.lane_mask(minimum(f.count - vector.i * k.width, k.width))
        k.masked_store(tanh(k, k.masked_load(f.x + at, some)), f.x + at, some)


class Squashing(TunedKernel):
    """x = tanh(x) of ``count`` numbers."""

    kernel = "tanh"

    def __init__(self, count: int, tuning: Tuning) -> None:
        self.tuning, self._kernel = tuning, _tanh_kernel(tuning.width)
        self._threads = max(1, min(tuning.threads, count // OUTPUT_FEWEST_EACH))
        self._arguments = Arguments(TanhFields.values(count=count))

    def __call__(self, x: np.ndarray) -> None:
        self._arguments.run(self._kernel, self._threads, {"x": x})


VECTORS = 4
"""Vectors of hidden values in a block: as many sums of each sequence are in registers."""


class BackFields(StepFields):
    """Steps of an RNN, from the last to the first.

    ``weight`` has the shape (gates * size, size).
    """

    dy: Address
    """Gradients of the hidden states from above, (steps, rows, size)."""
    dz: Address
    """Gradients of the gates' inputs, (steps, rows, gates * size); written."""
    known: Address
    """Values of the gates, (steps, rows, gates * size); of an RNN the hidden states."""


class LstmBackFields(BackFields):
    """Steps of an LSTM."""

    cells: Address
    """Cells that steps began with, (steps, rows, size)."""
    squashed: Address
    """The tanh of the cells that steps ended with, (steps, rows, size)."""
    dc: Address
    """Gradients of the cells that a step ends with, (rows, size); they become the gradients of the
    cells that it begins with."""


class RnnGradient:
    """Gradient of h = tanh(z), in a kernel; the base of other cells' gradients."""

    gates = 1
    fields: type[BackFields] = BackFields
    f: BackFields

    def __init__(self, k: Kernel, f: BackFields) -> None:
        self._k, self.f = k, f

    def step(self, place: Place, dh: Vector) -> None:
        """Write the gradients of the inputs, given that of the hidden state."""
        k, at, some = self._k, place.in_gates, place.some
        k.masked_store(
            _past_tanh(k, k.masked_load(self.f.known + at, some), dh), self.f.dz + at, some
        )


class LstmGradient(RnnGradient):
    """Gates input, forget, output and new value."""

    gates = 4
    fields = LstmBackFields
    f: LstmBackFields

    def step(self, place: Place, dh: Vector) -> None:
        k, f, some = self._k, self.f, place.some
        known, dz, gate_bytes = f.known + place.in_gates, f.dz + place.in_gates, f.size * FLOAT
        i, forget, o, g = (k.masked_load(known + gate_bytes * gate, some) for gate in range(4))
        squashed = k.masked_load(f.squashed + place.in_all, some)
        dc = k.masked_load(f.dc + place.at, some) + _past_tanh(k, squashed, dh) * o
        before = dc * place.cont
        gradients = (
            _past_sigmoid(k, i, dc * g),
            _past_sigmoid(k, forget, before * k.masked_load(f.cells + place.in_all, some)),
            _past_sigmoid(k, o, dh * squashed),
            _past_tanh(k, g, dc * i),
        )
        for gate, gradient in enumerate(gradients):
            k.masked_store(gradient, dz + gate_bytes * gate, some)
        k.masked_store(before * forget, f.dc + place.at, some)


def _past_tanh(k: Kernel, squashed: Vector, gradient: Vector) -> Vector:
    return (k.constant(1.0) - squashed * squashed) * gradient


def _past_sigmoid(k: Kernel, gate: Vector, gradient: Vector) -> Vector:
    return gradient * gate * (k.constant(1.0) - gate)


GRADIENTS: Mapping[str, type[RnnGradient]] = {"LSTM": LstmGradient, "RNN": RnnGradient}


def _gradient_kernel(cell: str, width: int) -> int:
    sort = GRADIENTS[cell]

    def write(k: Kernel, f: BackFields) -> None:
        _write_gradient(k, sort(k, f))

    return sort.fields.kernel(f"retracing_{cell.lower()}")(write)(width)


def _write_gradient(k: Kernel, cell: RnnGradient) -> None:
    f, most = cell.f, MOST_ROWS[k.width][VECTORS]
    sums = k.scratch(most * VECTORS)

    def multiply(tile: Tile, rows: int) -> None:
        """Write the next step's gradients of a block of sequences: (rows, VECTORS)."""
        row_bytes = f.size * FLOAT
        wide = row_bytes * cell.gates
        behind = f.dz + ((tile.step + 1) * f.rows + tile.row) * wide
        gradients = [behind + wide * place for place in range(rows)]
        first = tile.block * VECTORS
        panel = f.weight + first * k.vector_bytes
        some = [_lanes_of(k, f, first + place) for place in range(VECTORS)]

        def weights(i: Word) -> list[Vector]:
            line = panel + i * row_bytes
            return [k.masked_load(line + k.vector_bytes * n, part) for n, part in enumerate(some)]

        # the last step has no next step
        count = choose(tile.step < f.steps - 1, f.size * cell.gates, k.word(0))
        for place, total in enumerate(_products(k, count, weights, gradients, VECTORS)):
            k.store(total, sums + place * k.vector_bytes)

    with k.loop(f.first + 1, f.last) as back:
        step = f.first + f.last - back.i
        with (
            _each_tile(k, f, step, most, multiply) as tile,
            k.loop(tile.rows) as one,
            k.loop(VECTORS) as vector,
        ):
            total = k.load(sums + (one.i * VECTORS + vector.i) * k.vector_bytes)
            row, here = tile.row + one.i, tile.block * VECTORS + vector.i
            place = _place_of(k, f, cell.gates, step, row, here)
            after = minimum(step + 1, f.steps - 1) * f.rows + row
            carried = total * k.broadcast(f.cont + after * FLOAT)
            cell.step(place, carried + k.masked_load(f.dy + place.in_all, place.some))


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
        sort = GRADIENTS[cell]
        super().__init__(f"{cell.lower()} gradient", dz.shape, sort.gates, tuning)
        self._kernel = _gradient_kernel(cell, tuning.width)
        self._dc = np.zeros((self._rows, self._size), np.float32)
        more = {"cells": kept.cells, "squashed": kept.squashed, "dc": self._dc}
        values = self._values(
            sort.fields,
            VECTORS,
            VECTORS * tuning.width,
            dz=dz,
            known=known,
            **(more if cell == "LSTM" else {}),
        )
        self._arguments = Arguments(values)

    def __call__(self, weight: np.ndarray, cont: np.ndarray, dy: np.ndarray) -> None:
        """Compute all steps.

        Shapes: weight of the hidden state (G * H, H), factors of the states before each step
        (T, N), gradients of the hidden states from above (T, N, H).
        """
        self._dc[...] = 0
        each = {"weight": weight, "cont": cont, "dy": dy}
        if self._threads == 1:
            self._run(self._steps - 1, 0, 1, each)
            return
        # threads meet between steps; other threads take a late thread's part
        for step in reversed(range(self._steps)):
            self._run(step, step, self._threads, each)
