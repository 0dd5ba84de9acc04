"""The kernel of steps: products with the hidden state, and what the cells make of them.

A thread computes some vectors of hidden values, each of some sequences: the sums of all gates stay
in registers while it goes through the weights once. No sum is divided among threads, so their
number changes no bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Vector,
    Word,
    choose,
    chunk,
    fma,
    maximum,
    minimum,
)
from demitasse.backends.kernels.recurrence.cells import Cell, Place, StepFields

__all__ = ["MOST_ROWS", "write"]

MOST_ROWS = {8: {1: 8, 4: 2}, 16: {1: 8, 4: 6}}
"""Floats of a vector -> gates -> sequences whose sums fit into the registers."""

CHAINS = 8
"""Sums side by side at least, for an addition takes some cycles."""


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
            # there and back again: what was read last is still in the nearest cache
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
    """What is computed at a time: a block of hidden values of some sequences in one step.

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
    """Write what the first step finds."""
    f = cell.f
    with k.loop(f.rows) as row, k.loop(f.blocks) as block:
        place = _place(k, f, k.word(0), row.i, block.i)
        h = k.load_some(f.first_h + place.at, place.some)
        k.store_some(h * place.cont, _before(f, k.word(0)) + place.at, place.some)
        cell.begin(place)


def _place(k: Kernel, f: StepFields, step: Word, row: Word, block: Word) -> Place:
    """Return a block of a sequence in a step."""
    return Place(
        at=row * f.size * FLOAT + block * k.vector_bytes,
        some=k.first(minimum(f.size - block * k.width, k.width)),
        cont=k.broadcast(f.cont + (step * f.rows + row) * FLOAT),
    )


def _before(f: StepFields, step: Word) -> Word:
    """Return the address of the hidden states that a step begins with, of the first sequence."""
    return f.before + step % 2 * f.rows * f.size * FLOAT


def _multiply(k: Kernel, cell: Cell, part: _Part, rows: int, sums: Word) -> None:
    """Write what the hidden states of so many sequences give to the gates: (rows, gates)."""
    f = cell.f
    row_bytes, panel_bytes = f.size * FLOAT, f.size * k.vector_bytes
    first = _before(f, part.step) + part.row * row_bytes
    hidden = [first + row_bytes * row for row in range(rows)]
    panels = [f.weight + (f.blocks * gate + part.block) * panel_bytes for gate in range(cell.gates)]
    for place, total in enumerate(_products(k, f.size, panels, hidden)):
        k.store(total, sums + place * k.vector_bytes)


def _products(
    k: Kernel, size: Word, panels: Sequence[Word], hidden: Sequence[Word]
) -> list[Vector]:
    """Write sums of products of each hidden state with each panel; return them in this order."""
    count = len(panels) * len(hidden)
    turns = max(1, CHAINS // count)
    zeros = [k.constant(0.0)] * count

    def turn(i: Word, sums: Sequence[Vector]) -> list[Vector]:
        weights = [k.load(panel + i * k.vector_bytes) for panel in panels]
        numbers = [k.broadcast(state + i * FLOAT) for state in hidden]
        pairs = [(number, weight) for number in numbers for weight in weights]
        return [fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]

    whole = size // turns * turns
    with k.loop(whole, 0, turns, vectors=zeros * turns) as loop:
        loop.vectors = [
            total
            for place in range(turns)
            for total in turn(loop.i + place, loop.vectors[place * count : (place + 1) * count])
        ]
    sums = loop.vectors[:count]
    for place in range(1, turns):
        others = loop.vectors[place * count : (place + 1) * count]
        sums = [total + other for total, other in zip(sums, others, strict=True)]
    with k.loop(size, whole, vectors=sums) as rest:
        rest.vectors = turn(rest.i, rest.vectors)
    return rest.vectors


def _step(k: Kernel, cell: Cell, part: _Part, row: Word, totals: Sequence[Vector]) -> None:
    """Write the step of a sequence's block, given what the hidden state gives to each gate."""
    f = cell.f
    place = _place(k, f, part.step, row, part.block)
    here, gate_bytes = part.block * k.vector_bytes, f.size * FLOAT
    z = f.z + (part.step * f.rows + row) * gate_bytes * cell.gates + here
    static = f.static + row * f.static_bytes + here
    inputs = []
    for gate, total in enumerate(totals):
        given, more = (k.load_some(at + gate_bytes * gate, place.some) for at in (z, static))
        inputs.append(given + more + total)
    h = cell.step(place, inputs)
    all_bytes = f.rows * f.size * FLOAT
    k.store_some(h, f.hidden + part.step * all_bytes + place.at, place.some)
    with k.when(part.step >= f.steps - 1):
        k.store_some(h, f.last_h + place.at, place.some)
    with k.when(part.step < f.steps - 1):
        cont = k.broadcast(f.cont + ((part.step + 1) * f.rows + row) * FLOAT)
        k.store_some(h * cont, _before(f, part.step + 1) + place.at, place.some)
