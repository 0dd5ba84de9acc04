"""Register tiles of recurrent layers: some sequences and a block of hidden values in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

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
    minimum,
)
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


def place_of(k: Kernel, f: StepFields, gates: int, step: Word, row: Word, vector: Word) -> Place:
    """Return the place of a vector of a sequence in a step."""
    here, row_bytes, number = vector * k.vector_bytes, f.size * FLOAT, step * f.rows + row
    return Place(
        at=row * row_bytes + here,
        some=lanes_of(k, f, vector),
        cont=k.broadcast(f.cont + number * FLOAT),
        in_all=number * row_bytes + here,
        in_gates=number * row_bytes * gates + here,
    )


def lanes_of(k: Kernel, f: StepFields, vector: Word) -> Condition:
    """Return the mask of a vector's hidden values."""
    return k.lane_mask(minimum(f.size - vector * k.width, k.width))


@contextmanager
def each_tile(
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


def products(
    k: Kernel,
    size: Word,
    weights: Callable[[Word], Sequence[Vector]],
    states: Sequence[Word],
    count: int,
) -> list[Vector]:
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


class RecurrentKernel(TunedKernel):
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
        """Compute some steps."""
        self._arguments.run(self._kernel, threads, {**each, "first": first, "last": last})

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"{self._kind} llvm:{self.tuning.instructions}"
