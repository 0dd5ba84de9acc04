"""Backward passes of LSTM and RNN.

The gradient of a step depends on the next step's: a thread computes some vectors of hidden values,
each of some sequences, in one pass over the weights. No sum is divided among threads, so their
number changes no bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word, choose, minimum
from demitasse.backends.kernels.recurrence.cells import (
    MOST_ROWS,
    Place,
    RecurrentKernel,
    StepFields,
    Tile,
    each_tile,
    lanes_of,
    place_of,
    products,
)
from demitasse.backends.kernels.recurrence.forward import SavedStates
from demitasse.backends.kernels.tuning import Tuning

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


def _kernel(cell: str, width: int) -> int:
    """Return the address of the kernel."""
    sort = GRADIENTS[cell]

    def write(k: Kernel, f: BackFields) -> None:
        _write(k, sort(k, f))

    return sort.fields.kernel(f"retracing_{cell.lower()}")(write)(width)


def _write(k: Kernel, cell: RnnGradient) -> None:
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
        some = [lanes_of(k, f, first + place) for place in range(VECTORS)]

        def weights(i: Word) -> list[Vector]:
            line = panel + i * row_bytes
            return [k.masked_load(line + k.vector_bytes * n, part) for n, part in enumerate(some)]

        # the last step has no next step
        count = choose(tile.step < f.steps - 1, f.size * cell.gates, k.word(0))
        for place, total in enumerate(products(k, count, weights, gradients, VECTORS)):
            k.store(total, sums + place * k.vector_bytes)

    with k.loop(f.first + 1, f.last) as back:
        step = f.first + f.last - back.i
        with (
            each_tile(k, f, step, most, multiply) as tile,
            k.loop(tile.rows) as one,
            k.loop(VECTORS) as vector,
        ):
            total = k.load(sums + (one.i * VECTORS + vector.i) * k.vector_bytes)
            row, here = tile.row + one.i, tile.block * VECTORS + vector.i
            place = place_of(k, f, cell.gates, step, row, here)
            after = minimum(step + 1, f.steps - 1) * f.rows + row
            carried = total * k.broadcast(f.cont + after * FLOAT)
            cell.step(place, carried + k.masked_load(f.dy + place.in_all, place.some))


class RecurrentBackward(RecurrentKernel):
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
        self._kernel = _kernel(cell, tuning.width)
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
