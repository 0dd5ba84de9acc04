"""Backward passes of LSTM and RNN.

A step's gradient is made of that of the step after it: a thread computes some vectors of hidden
values, each of some sequences, while it goes through the weights once. No sum is divided among
threads, so their number changes no bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import RUNTIME, Address, Arguments, Struct
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Condition,
    Vector,
    Word,
    choose,
    chunk,
    minimum,
)
from demitasse.backends.kernels.recurrence import forward
from demitasse.backends.kernels.recurrence.cells import MOST_ROWS, products
from demitasse.backends.kernels.recurrence.forward import SavedStates
from demitasse.backends.kernels.tuning import Tuning

VECTORS = 4
"""Vectors of hidden values in a block: as many sums of each sequence are in registers."""


@cache
def _kernel(cell: str, width: int) -> int:
    """Return the address of the kernel."""
    name = f"retracing_{cell.lower()}{width}"
    return compiled(name, partial(_write, name=name, width=width, sort=GRADIENTS[cell]), name)[name]


def _write(module: Any, name: str, width: int, sort: type[CellGradient]) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    cell = sort(k)
    f, most = cell.f, MOST_ROWS[width][VECTORS]
    sums = k.scratch(most * VECTORS)
    with k.loop(f.first + 1, f.last) as back:
        step = f.first + f.last - back.i
        groups = (f.rows + f.few - 1) // f.few
        first, end = chunk(f.blocks * groups, *k.thread())
        with k.loop(end, first) as loop:
            # alternate directions: the last weights are still in the first cache
            number = choose(step % 2 > 0, first + end - 1 - loop.i, loop.i)
            block, row = number // groups, number % groups * f.few
            rows = minimum(f.few, f.rows - row)
            with k.cases(rows) as case:
                for count in range(1, most + 1):
                    case(count)
                    _multiply(k, cell, (step, row, block), count, sums)
            with k.loop(rows) as one, k.loop(VECTORS) as vector:
                total = k.load(sums + (one.i * VECTORS + vector.i) * k.vector_bytes)
                _step(k, cell, (step, row + one.i, block * VECTORS + vector.i), total)
    k.done()


def _multiply(
    k: Kernel, cell: CellGradient, at: tuple[Word, Word, Word], rows: int, sums: Word
) -> None:
    """Write the next step's gradients of a block of sequences: (rows, VECTORS)."""
    f, (step, row, block) = cell.f, at
    row_bytes = f.size * FLOAT
    wide = row_bytes * cell.gates
    behind = f.dz + ((step + 1) * f.rows + row) * wide
    gradients = [behind + wide * place for place in range(rows)]
    first = block * VECTORS
    panel = f.weight + first * k.vector_bytes
    some = [_some(k, f.size, first + place) for place in range(VECTORS)]

    def weights(i: Word) -> list[Vector]:
        line = panel + i * row_bytes
        return [k.masked_load(line + k.vector_bytes * n, part) for n, part in enumerate(some)]

    # the last step has no next step
    count = choose(step < f.steps - 1, f.size * cell.gates, k.word(0))
    for place, total in enumerate(products(k, count, weights, gradients, VECTORS)):
        k.store(total, sums + place * k.vector_bytes)


def _some(k: Kernel, size: Word, vector: Word) -> Any:
    """Return the mask of a vector's hidden values."""
    return k.lane_mask(minimum(size - vector * k.width, k.width))


def _step(k: Kernel, cell: CellGradient, at: tuple[Word, Word, Word], total: Vector) -> None:
    """Write a vector of a sequence, given the next step's gradient of its hidden state."""
    f, (step, row, vector) = cell.f, at
    here, row_bytes, number = vector * k.vector_bytes, f.size * FLOAT, step * f.rows + row
    after = minimum(step + 1, f.steps - 1) * f.rows + row
    spot = Spot(
        at=row * row_bytes + here,
        some=_some(k, f.size, vector),
        in_all=number * row_bytes + here,
        in_gates=number * row_bytes * cell.gates + here,
        cont=k.broadcast(f.cont + number * FLOAT),
    )
    carried = total * k.broadcast(f.cont + after * FLOAT)
    cell.step(spot, carried + k.masked_load(f.dy + spot.in_all, spot.some))


class RecurrentBackward:
    """The gradients of T steps of N sequences, with G gates for each of H hidden values.

    Args:
        cell: "LSTM" or "RNN".
        dz: Gets the gradients of the inputs of the gates. Shape: (T, N, G * H).
        known: What the gates let through; of an RNN the hidden states. Shape: (T, N, G * H).
        kept: What the steps kept.
        tuning: The kernel's vectors and threads.
    """

    def __init__(
        self, cell: str, dz: np.ndarray, known: np.ndarray, kept: SavedStates, tuning: Tuning
    ) -> None:
        self._name, self._steps, self.tuning = cell, dz.shape[0], tuning
        steps, rows, wide = dz.shape
        sort = GRADIENTS[cell]
        size = wide // sort.gates
        self._kernel = _kernel(cell, tuning.width)
        self._dc = np.zeros((rows, size), np.float32)
        most = MOST_ROWS[tuning.width][VECTORS]
        fewest = forward.FEWEST_EACH
        self._threads = max(1, min(tuning.threads, rows * wide * size // fewest))
        more = {"cells": kept.cells, "squashed": kept.squashed, "dc": self._dc}
        values = sort.fields.values(
            weight=RUNTIME,
            cont=RUNTIME,
            dy=RUNTIME,
            dz=dz,
            known=known,
            first=RUNTIME,
            last=RUNTIME,
            steps=steps,
            rows=rows,
            few=-(-rows // -(-rows // most)),
            size=size,
            blocks=-(-size // (VECTORS * tuning.width)),
            **(more if cell == "LSTM" else {}),
        )
        self._arguments = Arguments(values)

    def __call__(self, weight: np.ndarray, cont: np.ndarray, dy: np.ndarray) -> None:
        """Compute all steps.

        Args:
            weight: Of the hidden state. Shape: (G * H, H).
            cont: What the states were multiplied with before each step. Shape: (T, N).
            dy: The gradients of the hidden states from above. Shape: (T, N, H).
        """
        self._dc[...] = 0
        each = {"weight": weight, "cont": cont, "dy": dy}

        def run(first: int, last: int) -> None:
            steps = {"first": first, "last": last}
            self._arguments.run(self._kernel, self._threads, {**each, **steps})

        if self._threads == 1:
            run(self._steps - 1, 0)
            return
        # threads meet between steps; other threads take a late thread's part
        for step in reversed(range(self._steps)):
            run(step, step)

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"{self._name.lower()} gradient llvm:{self.tuning.instructions}"


class BackFields(Struct):
    """Steps of sequences, from the last to the first. All arrays are in C order."""

    weight: Address
    """Address of the weights of the hidden state, (gates * size, size)."""
    cont: Address
    """Address of what the states are multiplied with before each step, (steps, rows)."""
    dy: Address
    """Address of the gradients of the hidden states from above, (steps, rows, size)."""
    dz: Address
    """Address of the gradients of the gates' inputs, (steps, rows, gates * size); written."""
    known: Address
    """Address of what the gates let through, (steps, rows, gates * size); of an RNN the hidden
    states."""
    first: Word
    """The first step."""
    last: Word
    """The last computed step, which is the earliest."""
    steps: Word
    """Total number of steps."""
    rows: Word
    """Number of sequences."""
    few: Word
    """Sequences per register tile."""
    size: Word
    """Hidden values of a sequence."""
    blocks: Word
    """Blocks of vectors of hidden values."""


class Spot(NamedTuple):
    """A vector of hidden values of one sequence in one step.

    Attributes:
        at: Bytes to it from the beginning of an array (rows, size).
        some: Which elements of the vector there are.
        in_all: Bytes to it from the beginning of an array (steps, rows, size).
        in_gates: The same of an array (steps, rows, gates * size), for the first gate.
        cont: What the states were multiplied with before the step.
    """

    at: Word
    some: Condition
    in_all: Word
    in_gates: Word
    cont: Vector


class CellGradient(Protocol):
    """Gradient of a cell type, in the kernel."""

    gates: ClassVar[int]
    """Gates of a hidden value."""
    fields: ClassVar[type[BackFields]]
    """Values kept for the backward pass."""

    def __init__(self, k: Kernel) -> None: ...

    @property
    def f(self) -> BackFields:
        """Values kept by the forward pass."""

    def step(self, spot: Spot, dh: Vector) -> None:
        """Write the gradients of the inputs, given that of the hidden state."""


class LstmBackFields(BackFields):
    """LSTM cell."""

    cells: Address
    """Address of the cells that steps began with, (steps, rows, size)."""
    squashed: Address
    """Address of the tanh of those that they ended with, (steps, rows, size)."""
    dc: Address
    """Address of the gradients of the cells that a step ends with, (rows, size); they become those
    of the cells that it begins with."""


class LstmGradient:
    """Gates input, forget, output and new value."""

    gates: ClassVar[int] = 4
    fields: ClassVar[type[BackFields]] = LstmBackFields

    def __init__(self, k: Kernel) -> None:
        self._k, self.f = k, LstmBackFields.read(k)

    def step(self, spot: Spot, dh: Vector) -> None:
        k, f, some = self._k, self.f, spot.some
        known, dz, gate_bytes = f.known + spot.in_gates, f.dz + spot.in_gates, f.size * FLOAT
        i, forget, o, g = (k.masked_load(known + gate_bytes * gate, some) for gate in range(4))
        squashed = k.masked_load(f.squashed + spot.in_all, some)
        dc = k.masked_load(f.dc + spot.at, some) + _past_tanh(k, squashed, dh) * o
        before = dc * spot.cont
        gradients = (
            _past_sigmoid(k, i, dc * g),
            _past_sigmoid(k, forget, before * k.masked_load(f.cells + spot.in_all, some)),
            _past_sigmoid(k, o, dh * squashed),
            _past_tanh(k, g, dc * i),
        )
        for gate, gradient in enumerate(gradients):
            k.masked_store(gradient, dz + gate_bytes * gate, some)
        k.masked_store(before * forget, f.dc + spot.at, some)


class RnnGradient:
    """Gradient of h = tanh(z)."""

    gates: ClassVar[int] = 1
    fields: ClassVar[type[BackFields]] = BackFields

    def __init__(self, k: Kernel) -> None:
        self._k, self.f = k, BackFields.read(k)

    def step(self, spot: Spot, dh: Vector) -> None:
        k, at, some = self._k, spot.in_gates, spot.some
        k.masked_store(
            _past_tanh(k, k.masked_load(self.f.known + at, some), dh), self.f.dz + at, some
        )


def _past_tanh(k: Kernel, squashed: Vector, gradient: Vector) -> Vector:
    return (k.constant(1.0) - squashed * squashed) * gradient


def _past_sigmoid(k: Kernel, gate: Vector, gradient: Vector) -> Vector:
    return gradient * gate * (k.constant(1.0) - gate)


GRADIENTS: Mapping[str, type[CellGradient]] = {"LSTM": LstmGradient, "RNN": RnnGradient}
