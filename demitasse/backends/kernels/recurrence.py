"""LSTM and RNN: all steps of sequences without Python between them, forward and backward.

A register tile is a block of hidden values of some sequences in one step. The gradient of a step
depends on the next step's: a thread computes some vectors of hidden values, each of some
sequences, in one pass over the weights. No sum is divided among threads, so their number changes
no bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel, threads_for
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import RUNTIME, Address, OptionalAddress, Struct
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Condition,
    Vector,
    Word,
    choose,
    chunk,
    maximum,
    minimum,
)
from demitasse.backends.kernels.math_functions import sigmoid, tanh
from demitasse.backends.kernels.products import multiply
from demitasse.backends.kernels.tuning import Tuning

GATES = {"LSTM": 4, "RNN": 1}
"""Gates of a cell; those of an LSTM are input, forget, output and new value."""

FEWEST_EACH = 1 << 16
"""Multiplications of a step for each thread at least: to meet others takes as long as these."""

MOST_ROWS = {4: {1: 8, 2: 12, 4: 6}, 8: {1: 8, 2: 6, 4: 2}, 16: {1: 8, 2: 14, 4: 6}}
"""Floats of a vector -> vectors of a sequence -> sequences whose sums fit into the registers."""

CHAINS = 8
"""Least number of independent sums, because an addition has a latency of some cycles."""

VECTORS = 4
"""Vectors of hidden values in a gradient's block: as many sums of each sequence are in registers.
A forward block is one vector of hidden values, whose sums are those of the gates."""


class StepFields(Struct):
    """Some steps of some sequences. All arrays are in C order; of an RNN there are no cells."""

    first: Word
    """The first step; backward, steps are counted from the last one."""
    last: Word
    """The end of the steps."""
    weight: Address
    """Weights of the hidden state."""
    cont: Address
    """Factors of the states before each step, (steps, rows)."""
    steps: Word
    """Total number of steps."""
    rows: Word
    """Number of sequences."""
    size: Word
    """Hidden values of a sequence."""
    cells: OptionalAddress
    """Cells that steps begin with, (steps, rows, size); written forward, for gradients."""
    squashed: OptionalAddress
    """The tanh of the cells that steps end with, like ``cells``."""


class Place(NamedTuple):
    """A vector of hidden values of one sequence in one step.

    Attributes:
        at: Bytes from the beginning of an array (rows, size).
        some: Mask of the vector's hidden values.
        cont: Factor of the states before the step.
        in_all: Bytes from the beginning of an array (steps, rows, size).
        in_gates: Bytes from the beginning of an array (steps, rows, gates * size) to each gate.
    """

    at: Word
    some: Condition
    cont: Vector
    in_all: Word
    in_gates: list[Word]


def _place(k: Kernel, f: StepFields, gates: int, step: Word, row: Word, vector: Word) -> Place:
    here, row_bytes, number = vector * k.vector_bytes, f.size * FLOAT, step * f.rows + row
    return Place(
        at=row * row_bytes + here,
        some=k.lane_mask(f.size - vector * k.width),
        cont=k.broadcast(f.cont + number * FLOAT),
        in_all=number * row_bytes + here,
        in_gates=[(number * gates + gate) * row_bytes + here for gate in range(gates)],
    )


Weights = Callable[[Word], Sequence[Vector]]
"""Writes the vectors of weights of one number of a state, given its index."""


@contextmanager
def _each_row(
    k: Kernel, f: StepFields, step: Word, size: Word, states: tuple[Word, Word],
    weights: Callable[[Word, int], Weights], vectors: int, block: int, once: int = 0,
) -> Iterator[tuple[Word, Word, Word]]:  # fmt: skip
    """Write a loop over the sequences of the thread's tiles of a step.

    The sequences' states are ``size`` numbers each, multiplied by ``vectors`` vectors of weights;
    those of a ``block`` of vectors of hidden values are ``weights``, given the first of ``once``
    that are multiplied at a time, or of all. ``states`` are the address of the first sequence's,
    and bytes from one sequence's to the next's.

    Yields the number of a block, a sequence, and the address of its products.
    """
    once, (first_state, state_bytes) = once or vectors, states
    most = MOST_ROWS[k.width][once]
    blocks = (f.size + (block * k.width - 1)) // (block * k.width)
    groups = (f.rows + (most - 1)) // most
    few, sums = (f.rows + groups - 1) // groups, k.scratch(most * vectors)
    first, end = chunk(blocks * groups, *k.thread())
    with k.loop(end, first) as loop:
        # alternate directions: the last weights are still in the first cache
        tile = choose(step % 2 > 0, first + end - 1 - loop.i, loop.i)
        number, row = tile // groups, tile % groups * few
        count, here = minimum(few, f.rows - row), first_state + row * state_bytes
        with k.cases(count) as case:
            for rows in range(1, most + 1):
                case(rows)
                of_rows = [here + state_bytes * place for place in range(rows)]
                for part in range(0, vectors, once):
                    found = _products(k, size, weights(number, part), of_rows, once)
                    for place, total in enumerate(found):
                        at = part + place // once * vectors + place % once
                        k.store(total, sums + at * k.vector_bytes)
        with k.loop(count) as one:
            yield number, row + one.i, sums + one.i * (vectors * k.vector_bytes)


def _products(
    k: Kernel, size: Word, weights: Weights, states: Sequence[Word], vectors: int
) -> list[Vector]:
    """Write sums of ``size`` products of numbers with vectors; return the first state's first."""
    sums = vectors * len(states)
    unrolled = max(1, CHAINS // sums)
    whole = size // unrolled * unrolled

    def add(i: Word, totals: list[Vector]) -> list[Vector]:
        multiply(k, totals, [state + i * FLOAT for state in states], weights(i))
        return totals

    with k.loop(whole, 0, unrolled, vectors=[k.constant(0.0)] * (sums * unrolled)) as loop:
        parts = [loop.vectors[sums * place : sums * (place + 1)] for place in range(unrolled)]
        added = [add(loop.i + place, part) for place, part in enumerate(parts)]
        loop.vectors = [total for part in added for total in part]
    totals = [reduce(Vector.__add__, loop.vectors[place::sums]) for place in range(sums)]
    with k.loop(size, whole, vectors=totals) as rest:
        rest.vectors = add(rest.i, rest.vectors)
    return rest.vectors


class ForwardFields(StepFields):
    """Steps of a cell, of which the first is -1 to prepare it.

    ``weight`` has the shape (gates, blocks, size, a vector's floats): a block is a vector of hidden
    values, filled up with zeros.
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


@ForwardFields.kernel("recurrence")
def _kernel(k: Kernel, f: ForwardFields, cell: str, once: int, *, keeps: bool) -> None:
    gates, row_bytes = GATES[cell], f.size * FLOAT
    blocks = (f.size + (k.width - 1)) // k.width

    def before(step: Word) -> Word:
        """Return the address of the hidden states that a step begins with, of the first row."""
        return f.before + step % f.slots * f.rows * row_bytes

    def weights(block: Word, first: int) -> Weights:
        of = range(first, first + once)
        panels = [f.weight + (blocks * gate + block) * (f.size * k.vector_bytes) for gate in of]
        return lambda i: [k.load(panel + i * k.vector_bytes) for panel in panels]

    with k.when(f.first < 0), k.parallel_loop(f.rows, blocks) as (row, block):
        place = _place(k, f, gates, k.word(0), row, block)
        h = k.load(f.first_h + place.at, place.some)
        k.store(h * place.cont, before(k.word(0)) + place.at, place.some)
        if cell == "LSTM":
            c = k.load(f.first_c + place.at, place.some)
            k.store(c, f.last_c + place.at, place.some)
    with k.loop(f.last, maximum(f.first, 0)) as loop:
        step, states = loop.i, (before(loop.i), row_bytes)
        with _each_row(k, f, step, f.size, states, weights, gates, 1, once) as (block, row, sums):
            place = _place(k, f, gates, step, row, block)
            at, some = place.at, place.some
            static = f.static + row * f.static_bytes + block * k.vector_bytes
            inputs = [
                k.load(f.z + there, some)
                + k.load(static + row_bytes * gate, some)
                + k.load(sums + gate * k.vector_bytes)
                for gate, there in enumerate(place.in_gates)
            ]
            h = _lstm(k, f, place, inputs, keeps=keeps) if cell == "LSTM" else tanh(inputs[0])
            k.store(h, f.hidden + place.in_all, some)
            with k.when(step >= f.steps - 1):
                k.store(h, f.last_h + at, some)
            with k.when(step < f.steps - 1):
                cont = k.broadcast(f.cont + ((step + 1) * f.rows + row) * FLOAT)
                k.store(h * cont, before(step + 1) + at, some)


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
        for there, value in zip(place.in_gates, gates, strict=True):
            k.store(value, f.z + there, some)
        k.store(before, f.cells + place.in_all, some)
        k.store(squashed, f.squashed + place.in_all, some)
    return o * squashed


class BackFields(StepFields):
    """Steps of a cell, from the last to the first.

    ``weight`` has the shape (gates * size, blocks, floats of ``VECTORS`` vectors), the last block
    filled up with zeros; packed, (blocks, gates * size, floats).
    """

    dy: Address
    """Gradients of the hidden states from above, (steps, rows, size)."""
    known: Address
    """Values of the gates, (steps, rows, gates * size); of an RNN the hidden states."""
    dz: Address
    """Gradients of the gates' inputs, (steps, rows, gates * size); written."""
    dc: OptionalAddress
    """Gradients of the cells that a step ends with, (rows, size); they become the gradients of the
    cells that it begins with."""


@BackFields.kernel("recurrence_gradient")
def _gradient_kernel(k: Kernel, f: BackFields, cell: str, *, packed: bool) -> None:
    gates, block_bytes = GATES[cell], VECTORS * k.vector_bytes
    lines, blocks = f.size * gates, (f.size * FLOAT + (block_bytes - 1)) // block_bytes
    wide, places = lines * FLOAT, range(0, block_bytes, k.vector_bytes)
    next_block, next_line = (lines, k.word(1)) if packed else (k.word(1), blocks)

    def weights(block: Word, _: int) -> Weights:
        panel = f.weight + block * next_block * block_bytes
        return lambda i: [k.load(panel + i * next_line * block_bytes + at) for at in places]

    with k.loop(f.last, f.first) as loop:
        step = f.steps - 1 - loop.i
        # the last step has no next step
        size = choose(loop.i > 0, f.size * gates, k.word(0))
        states = f.dz + (step + 1) * f.rows * wide, wide
        every = _each_row(k, f, step, size, states, weights, VECTORS, VECTORS)
        with every as (block, row, sums), k.loop(VECTORS) as vector:
            place = _place(k, f, gates, step, row, block * VECTORS + vector.i)
            after = minimum(step + 1, f.steps - 1) * f.rows + row
            total = k.load(sums + vector.i * k.vector_bytes)
            carried = total * k.broadcast(f.cont + after * FLOAT)
            dh = carried + k.load(f.dy + place.in_all, place.some)
            known = [k.load(f.known + at, place.some) for at in place.in_gates]
            if cell == "LSTM":
                found = _lstm_gradient(k, f, place, known, dh)
            else:
                found = [_past_tanh(known[0], dh)]
            for at, gradient in zip(place.in_gates, found, strict=True):
                k.store(gradient, f.dz + at, place.some)


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


def _past_tanh(squashed: Vector, gradient: Vector) -> Vector:
    return (1.0 - squashed * squashed) * gradient


def _past_sigmoid(gate: Vector, gradient: Vector) -> Vector:
    return gradient * gate * (1.0 - gate)


class Recurrence:
    """T steps of N sequences, with G gates for each of H hidden values, and the gradients.

    Args:
        cell: "LSTM" or "RNN".
        z: The inputs of the gates; read in each call. With ``trains``, an LSTM's become the values
            of the gates. Shape: (T, N, G * H).
        static: Numbers that each sequence adds to its inputs in all steps; read in each call.
            Shape: (N, G * H).
        trains: Whether the values that gradients need are kept.

    Attributes:
        before: With ``trains``, the hidden states that steps begin with. Shape: (T, N, H).
        state_count: Arrays of a state, of which the first is the hidden state.
        packed: True if backward reads one block of the weights after the other.
        nbytes: Bytes of the values that are kept.
    """

    def __init__(
        self, cell: str, z: np.ndarray, tuning: Tuning, *,
        static: np.ndarray | None = None, trains: bool = False,
    ) -> None:  # fmt: skip
        self._steps, rows, wide = z.shape
        gates, is_lstm = GATES[cell], cell == "LSTM"
        size = wide // gates
        self.state_count = 2 if is_lstm else 1

        def states(count: int) -> np.ndarray:
            return aligned(count * rows * size).reshape(count, rows, size)

        self.before = states(self._steps if trains else 2)
        cells, squashed, self._dc = (
            states(count) if trains and is_lstm else None for count in (self._steps, self._steps, 1)
        )
        held = self.before, cells, squashed, self._dc
        self.nbytes = sum(array.nbytes for array in held if array is not None)
        shared = {
            "first": RUNTIME, "last": RUNTIME, "steps": self._steps, "rows": rows, "size": size,
            "cells": cells, "squashed": squashed,
        }  # fmt: skip
        absent = {} if is_lstm else {"first_c": None, "last_c": None}
        values = ForwardFields.values(
            **shared, **absent, z=z, before=self.before, slots=len(self.before),
            static=aligned(wide) if static is None else static,
            static_bytes=0 if static is None else static.strides[0],
        )  # fmt: skip
        threads = threads_for(tuning, rows * wide * size, FEWEST_EACH)
        self.packed = MOST_ROWS[tuning.width][VECTORS] < min(rows, VECTORS)  # blocks are read often
        once = gates if rows <= MOST_ROWS[tuning.width][gates] else min(gates, 2)
        kernel = _kernel(tuning.width, cell, once, keeps=trains)
        self._forward = BoundKernel(cell.lower(), kernel, values, tuning, threads)
        self.code = self._forward.code
        if trains:
            values = BackFields.values(**shared, dc=self._dc)
            kernel = _gradient_kernel(tuning.width, cell, packed=self.packed)
            self._backward = BoundKernel(cell.lower(), kernel, values, tuning, threads)

    def forward(
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
        self._run(self._forward, -1, weight, cont, hidden, *begin, *end)

    def backward(
        self, weight: np.ndarray, cont: np.ndarray, dy: np.ndarray, known: np.ndarray,
        dz: np.ndarray,
    ) -> None:  # fmt: skip
        """Compute the gradients of all steps.

        Args:
            weight: Weights of the hidden state, (G * H, H) in blocks of ``VECTORS`` vectors, of
                each row or, with ``packed``, of all; the last is filled up with zeros.
            cont: Factors of the states before each step. Shape: (T, N).
            dy: Gradients of the hidden states from above. Shape: (T, N, H).
            known: Values of the gates, which are ``z``; of an RNN the hidden states.
            dz: Output for the gradients of the inputs of the gates. Shape: (T, N, G * H).
        """
        if self._dc is not None:
            self._dc[...] = 0
        self._run(self._backward, 0, weight, cont, dy, known, dz)

    def _run(self, kernel: BoundKernel, begin: int, *arrays: np.ndarray) -> None:
        """Run a kernel from a step on; threads meet between steps, where others may be late."""
        every = range(begin, self._steps + 1)
        for first, last in pairwise(every if kernel.threads > 1 else (begin, self._steps)):
            kernel(first, last, *arrays)
