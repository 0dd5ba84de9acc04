"""Forward passes of LSTM and RNN."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word, chunk, maximum, minimum
from demitasse.backends.kernels.math_functions import sigmoid, tanh
from demitasse.backends.kernels.recurrence.cells import (
    MOST_ROWS,
    Place,
    RecurrentKernel,
    StepFields,
    Tile,
    each_tile,
    place_of,
    products,
)
from demitasse.backends.kernels.tuning import TunedKernel, Tuning


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
    """Steps whose hidden states are kept: all, or two, one that is read and one written."""
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
    """Return the address of the kernel."""
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

        for place, total in enumerate(products(k, f.size, weights, hidden, cell.gates)):
            k.store(total, sums + place * k.vector_bytes)

    with (
        k.loop(f.last, maximum(f.first, 0)) as step,
        each_tile(k, f, step.i, most, multiply) as tile,
        k.loop(tile.rows) as one,
    ):
        here = sums + one.i * (cell.gates * k.vector_bytes)
        totals = [k.load(here + gate * k.vector_bytes) for gate in range(cell.gates)]
        _step(k, cell, tile, tile.row + one.i, totals)


def _begin(k: Kernel, cell: RnnCell) -> None:
    """Write the state of the first step."""
    f = cell.f
    with k.loop(f.rows) as row, k.loop(f.blocks) as block:
        place = place_of(k, f, cell.gates, k.word(0), row.i, block.i)
        h = k.masked_load(f.first_h + place.at, place.some)
        k.masked_store(h * place.cont, _before(f, k.word(0)) + place.at, place.some)
        cell.begin(place)


def _before(f: ForwardFields, step: Word) -> Word:
    """Return the address of the hidden states that a step begins with, of the first sequence."""
    return f.before + step % f.slots * f.rows * f.size * FLOAT


def _step(k: Kernel, cell: RnnCell, tile: Tile, row: Word, totals: Sequence[Vector]) -> None:
    """Write the step of a sequence's block, given the hidden state's contribution to each gate."""
    f = cell.f
    place = place_of(k, f, cell.gates, tile.step, row, tile.block)
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

    Attributes:
        before: The hidden states that steps begin with. Shape: (T, N, H).
        cells: The cells that steps of an LSTM begin with. Shape: (T, N, H).
        squashed: The tanh of the cells that steps of an LSTM end with. Shape: (T, N, H).
    """

    before: np.ndarray
    cells: np.ndarray
    squashed: np.ndarray

    @classmethod
    def of(cls, cell: str, shape: tuple[int, int, int]) -> SavedStates:
        """Return memory for steps of this shape, (T, N, H)."""
        sizes = [math.prod(shape), *[math.prod(shape) if cell == "LSTM" else 0] * 2]
        return cls(*(aligned(size).reshape(shape if size else 0) for size in sizes))


class Recurrence(RecurrentKernel):
    """T steps of N sequences, with G gates for each of H hidden values.

    Args:
        cell: "LSTM" or "RNN".
        z: The inputs of the gates; read in each call. With ``kept``, an LSTM's become the values of
            the gates. Shape: (T, N, G * H).
        static: Numbers that each sequence adds to its inputs in all steps; read in each call.
            Shape: (N, G * H).
        kept: Memory for the values that gradients need; None if there are none.

    Attributes:
        state_count: Arrays of a state; the first is the hidden state.
        nbytes: Bytes of the hidden states between steps.
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
