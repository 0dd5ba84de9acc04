"""LSTM and RNN cells, and their steps in time.

A cell is a piece of a kernel for a vector of hidden values of one sequence in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Struct
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


class StepFields(Struct):
    """Some steps of some sequences. All arrays are in C order."""

    weight: Address
    """Address of the weights of the hidden state, (gates, blocks, size, a vector's floats): a block
    is a vector of hidden values; those beyond the last one have zeros."""
    z: Address
    """Address of the inputs of the gates, (steps, rows, gates * size)."""
    static: Address
    """Address of what each sequence adds to them in all steps, (rows, gates * size)."""
    static_bytes: Word
    """Bytes from one sequence's to the next one's; 0 where all have the same."""
    cont: Address
    """Address of what the states are multiplied with before each step, (steps, rows)."""
    before: Address
    """Address of the hidden states that steps begin with, (slots, rows, size); written."""
    slots: Word
    """For how many steps they are kept: for all, or for two, of which one is read and the next
    one written."""
    hidden: Address
    """Address of the hidden states after each step, (steps, rows, size); written."""
    first_h: Address
    """Address of the hidden states at the beginning, (rows, size)."""
    last_h: Address
    """Address of the hidden states at the end, possibly the same array; written."""
    first: Word
    """The first step; -1 to make ready for it, which one thread does, and then begin."""
    last: Word
    """The step after the last computed step."""
    steps: Word
    """Total number of steps."""
    rows: Word
    """Number of sequences."""
    few: Word
    """Sequences per register tile."""
    size: Word
    """Hidden values of a sequence."""
    blocks: Word
    """Vectors of hidden values of a sequence."""


class Place(NamedTuple):
    """A vector of hidden values of one sequence in one step.

    Attributes:
        at: Bytes to it from the beginning of an array (rows, size).
        some: Which elements of the vector there are.
        cont: What the states are multiplied with before the step.
        in_all: Bytes to it from the beginning of an array (steps, rows, size).
        z: Address of the inputs of the first gate.
    """

    at: Word
    some: Condition
    cont: Vector
    in_all: Word
    z: Word


class Cell(Protocol):
    """Cell type, in the kernel."""

    gates: ClassVar[int]
    """Gates of a hidden value."""
    states: ClassVar[Sequence[str]]
    """Fields of the states at the beginning, and of those at the end."""
    fields: ClassVar[type[StepFields]]
    """Values kept for the backward pass."""

    def __init__(self, k: Kernel) -> None: ...

    @property
    def f(self) -> StepFields:
        """Values kept by the forward pass."""

    def begin(self, place: Place) -> None:
        """Write the state of the first step."""

    def step(self, place: Place, inputs: Sequence[Vector]) -> Vector:
        """Write a step; return the hidden state."""


class LstmFields(StepFields):
    """LSTM cell."""

    first_c: Address
    """Address of the cells at the beginning, (rows, size)."""
    last_c: Address
    """Address of the cells after the last step, possibly the same array; written in each step."""


class LstmCell:
    """Gates input, forget, output and new value."""

    gates: ClassVar[int] = 4
    states: ClassVar[Sequence[str]] = "first_h", "first_c", "last_h", "last_c"
    fields: ClassVar[type[StepFields]] = LstmFields

    def __init__(self, k: Kernel) -> None:
        self._k, self.f = k, LstmFields.read(k)

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


class LearningLstmFields(LstmFields):
    """LSTM cell that saves values for gradients."""

    cells: Address
    """Address of the cells that steps begin with, (steps, rows, size); written."""
    squashed: Address
    """Address of the tanh of those that they end with, (steps, rows, size); written."""


class LearningLstmCell:
    """The same, which keeps what its gradient needs.

    The inputs of the gates become what they let through.
    """

    gates: ClassVar[int] = 4
    states: ClassVar[Sequence[str]] = LstmCell.states
    fields: ClassVar[type[StepFields]] = LearningLstmFields

    def __init__(self, k: Kernel) -> None:
        self._k, self.f = k, LearningLstmFields.read(k)

    def begin(self, place: Place) -> None:
        k, at, some = self._k, place.at, place.some
        k.masked_store(k.masked_load(self.f.first_c + at, some), self.f.last_c + at, some)

    def step(self, place: Place, inputs: Sequence[Vector]) -> Vector:
        k, f, some = self._k, self.f, place.some
        *opened, new = inputs
        gates = [*(sigmoid(k, value) for value in opened), tanh(k, new)]
        for gate, value in enumerate(gates):
            k.masked_store(value, place.z + f.size * (FLOAT * gate), some)
        i, forget, o, g = gates
        before = k.masked_load(f.last_c + place.at, some)
        c = place.cont * forget * before + i * g
        squashed = tanh(k, c)
        k.masked_store(before, f.cells + place.in_all, some)
        k.masked_store(c, f.last_c + place.at, some)
        k.masked_store(squashed, f.squashed + place.in_all, some)
        return o * squashed


class RnnCell:
    """h = tanh(z)."""

    gates: ClassVar[int] = 1
    states: ClassVar[Sequence[str]] = "first_h", "last_h"
    fields: ClassVar[type[StepFields]] = StepFields

    def __init__(self, k: Kernel) -> None:
        self._k, self.f = k, StepFields.read(k)

    def begin(self, place: Place) -> None:
        """Nothing: the hidden state is all there is."""

    def step(self, place: Place, inputs: Sequence[Vector]) -> Vector:
        del place
        [z] = inputs
        return tanh(self._k, z)


CELLS: Mapping[str, type[Cell]] = {"LSTM": LstmCell, "RNN": RnnCell}

LEARNING: Mapping[str, type[Cell]] = {"LSTM": LearningLstmCell, "RNN": RnnCell}
"""Cells that save values for gradients; an RNN's gradients need only its hidden states."""


MOST_ROWS = {4: {1: 8, 4: 6}, 8: {1: 8, 4: 2}, 16: {1: 8, 4: 6}}
"""Floats of a vector -> gates -> sequences whose sums fit into the registers."""

CHAINS = 8
"""Least number of independent sums, because an addition has a latency of some cycles."""


def write(module: Any, name: str, width: int, sort: type[Cell]) -> None:
    """Write the kernel.

    Args:
        module: What it belongs to.
        name: Of the function.
        width: Floats of a vector.
        sort: Which cells there are.
    """
    k = Kernel(module, name, 1, width, exported=True)
    cell = sort(k)
    f, most = cell.f, MOST_ROWS[width][cell.gates]
    with k.when(f.first < 0):
        _begin(k, cell)
    sums = k.scratch(most * cell.gates)
    with k.loop(f.last, maximum(f.first, 0)) as step:
        groups = (f.rows + f.few - 1) // f.few
        first, end = chunk(f.blocks * groups, *k.thread())
        with k.loop(end, first) as loop:
            # alternate directions: the last weights are still in the first cache
            number = choose(step.i % 2 > 0, first + end - 1 - loop.i, loop.i)
            block, row = number // groups, number % groups * f.few
            part = _Part(step.i, block, row, minimum(f.few, f.rows - row))
            with k.cases(part.rows) as case:
                for rows in range(1, most + 1):
                    case(rows)
                    _multiply(k, cell, part, rows, sums)
            with k.loop(part.rows) as one:
                here = sums + one.i * (cell.gates * k.vector_bytes)
                totals = [k.load(here + gate * k.vector_bytes) for gate in range(cell.gates)]
                _step(k, cell, part, row + one.i, totals)
    k.done()


class _Part(NamedTuple):
    """Register tile: a block of hidden values of some sequences in one step.

    Attributes:
        step: The step.
        block: The block.
        row: The first sequence.
        rows: How many there are.
    """

    step: Word
    block: Word
    row: Word
    rows: Word


def _begin(k: Kernel, cell: Cell) -> None:
    """Write the state of the first step."""
    f = cell.f
    with k.loop(f.rows) as row, k.loop(f.blocks) as block:
        place = _place(k, cell, k.word(0), row.i, block.i)
        h = k.masked_load(f.first_h + place.at, place.some)
        k.masked_store(h * place.cont, _before(f, k.word(0)) + place.at, place.some)
        cell.begin(place)


def _place(k: Kernel, cell: Cell, step: Word, row: Word, block: Word) -> Place:
    """Return a block of a sequence in a step."""
    f = cell.f
    here, row_bytes, number = block * k.vector_bytes, f.size * FLOAT, step * f.rows + row
    return Place(
        at=row * row_bytes + here,
        some=k.lane_mask(minimum(f.size - block * k.width, k.width)),
        cont=k.broadcast(f.cont + number * FLOAT),
        in_all=number * row_bytes + here,
        z=f.z + number * row_bytes * cell.gates + here,
    )


def _before(f: StepFields, step: Word) -> Word:
    """Return the address of the hidden states that a step begins with, of the first sequence."""
    return f.before + step % f.slots * f.rows * f.size * FLOAT


def _multiply(k: Kernel, cell: Cell, part: _Part, rows: int, sums: Word) -> None:
    """Write the hidden states' contributions to the gates: (rows, gates)."""
    f = cell.f
    row_bytes, panel_bytes = f.size * FLOAT, f.size * k.vector_bytes
    first = _before(f, part.step) + part.row * row_bytes
    hidden = [first + row_bytes * row for row in range(rows)]
    panels = [f.weight + (f.blocks * gate + part.block) * panel_bytes for gate in range(cell.gates)]

    def weights(i: Word) -> list[Vector]:
        return [k.load(panel + i * k.vector_bytes) for panel in panels]

    for place, total in enumerate(products(k, f.size, weights, hidden, cell.gates)):
        k.store(total, sums + place * k.vector_bytes)


def products(
    k: Kernel,
    size: Word,
    weights: Callable[[Word], Sequence[Vector]],
    states: Sequence[Word],
    count: int,
) -> list[Vector]:
    """Write sums of products of numbers with vectors; return those of the first states first.

    Args:
        k: The kernel.
        size: Number of addends.
        weights: Writes the vectors of one number, given which it is.
        states: Addresses of the numbers of each sequence.
        count: Number of vectors.
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


def _step(k: Kernel, cell: Cell, part: _Part, row: Word, totals: Sequence[Vector]) -> None:
    """Write the step of a sequence's block, given the hidden state's contribution to each gate."""
    f = cell.f
    place = _place(k, cell, part.step, row, part.block)
    static, gate_bytes = (
        f.static + row * f.static_bytes + part.block * k.vector_bytes,
        f.size * FLOAT,
    )
    inputs = []
    for gate, total in enumerate(totals):
        given, more = (
            k.masked_load(at + gate_bytes * gate, place.some) for at in (place.z, static)
        )
        inputs.append(given + more + total)
    h = cell.step(place, inputs)
    k.masked_store(h, f.hidden + place.in_all, place.some)
    with k.when(part.step >= f.steps - 1):
        k.masked_store(h, f.last_h + place.at, place.some)
    with k.when(part.step < f.steps - 1):
        cont = k.broadcast(f.cont + ((part.step + 1) * f.rows + row) * FLOAT)
        k.masked_store(h * cont, _before(f, part.step + 1) + place.at, place.some)
