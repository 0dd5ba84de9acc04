"""Cells: what becomes of the inputs of the gates, once the products are there.

A cell is a piece of a kernel for a vector of hidden values of one sequence in one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Struct
from demitasse.backends.kernels.language.words import Condition, Vector, Word
from demitasse.backends.kernels.squash import sigmoid, tanh

__all__ = ["CELLS", "Cell", "Place", "StepFields"]


class StepFields(Struct):
    """Some steps of some sequences. All arrays are in C order."""

    weight: Word
    """Address of the weights of the hidden state, (gates, blocks, size, a vector's floats): a block
    is a vector of hidden values; those beyond the last one have zeros."""
    z: Word
    """Address of the inputs of the gates, (steps, rows, gates * size)."""
    static: Word
    """Address of what each sequence adds to them in all steps, (rows, gates * size)."""
    static_bytes: Word
    """Bytes from one sequence's to the next one's; 0 where all have the same."""
    cont: Word
    """Address of what the states are multiplied with before each step, (steps, rows)."""
    before: Word
    """Address of the hidden states that steps begin with, of even steps and of odd ones, (2, rows,
    size); written."""
    hidden: Word
    """Address of those that they end with, (steps, rows, size); written."""
    first_h: Word
    """Address of the hidden states at the beginning, (rows, size)."""
    last_h: Word
    """Address of those at the end, which may be the same; written."""
    first: Word
    """The first step; -1 to make ready for it, which one thread does, and then begin."""
    last: Word
    """The first one that is not computed any more."""
    steps: Word
    """How many there are in all."""
    rows: Word
    """How many sequences there are."""
    few: Word
    """How many of them are computed side by side."""
    size: Word
    """Hidden values of each."""
    blocks: Word
    """Vectors of them."""


class Place(NamedTuple):
    """A vector of hidden values of one sequence in one step.

    Attributes:
        at: Bytes to it from the beginning of an array (rows, size).
        some: Which elements of the vector there are.
        cont: What the states are multiplied with before the step.
    """

    at: Word
    some: Condition
    cont: Vector


class Cell(Protocol):
    """One sort of cell, in the kernel that its piece is written into."""

    gates: ClassVar[int]
    """How many inputs a hidden value has."""
    states: ClassVar[Sequence[str]]
    """Fields of the states at the beginning, and of those at the end."""
    fields: ClassVar[type[StepFields]]
    """What it needs to know."""

    def __init__(self, k: Kernel) -> None: ...

    @property
    def f(self) -> StepFields:
        """What it knows."""

    def begin(self, place: Place) -> None:
        """Write how it begins with the first step."""

    def step(self, place: Place, inputs: Sequence[Vector]) -> Vector:
        """Write a step; return the hidden state."""


class LstmFields(StepFields):
    """Those of an LSTM."""

    first_c: Word
    """Address of the cells at the beginning, (rows, size)."""
    last_c: Word
    """Address of those after the last step, which may be the same; written in each step."""


class LstmCell:
    """Gates input, forget, output and new value."""

    gates: ClassVar[int] = 4
    states: ClassVar[Sequence[str]] = "first_h", "first_c", "last_h", "last_c"
    fields: ClassVar[type[StepFields]] = LstmFields

    def __init__(self, k: Kernel) -> None:
        self._k, self.f = k, LstmFields.read(k)

    def begin(self, place: Place) -> None:
        k, at, some = self._k, place.at, place.some
        k.store_some(k.load_some(self.f.first_c + at, some), self.f.last_c + at, some)

    def step(self, place: Place, inputs: Sequence[Vector]) -> Vector:
        k, cell = self._k, self.f.last_c + place.at
        *opened, new = inputs
        i, forget, o = (sigmoid(k, value) for value in opened)
        c = place.cont * forget * k.load_some(cell, place.some) + i * tanh(k, new)
        k.store_some(c, cell, place.some)
        return o * tanh(k, c)


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
