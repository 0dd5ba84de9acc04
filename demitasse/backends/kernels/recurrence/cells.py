"""Cells: what becomes of the inputs of the gates, once the products are there.

A cell is a piece of a kernel for a vector of hidden values of one sequence in one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Struct
from demitasse.backends.kernels.language.words import FLOAT, Condition, Vector, Word
from demitasse.backends.kernels.squash import sigmoid, tanh

__all__ = ["CELLS", "LEARNING", "Cell", "Place", "StepFields"]


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
    """Address of those that they end with, (steps, rows, size); written."""
    first_h: Address
    """Address of the hidden states at the beginning, (rows, size)."""
    last_h: Address
    """Address of those at the end, which may be the same; written."""
    first: Word
    """The first step; -1 to make ready for it, which one thread does, and then begin."""
    last: Word
    """The first one that is not computed any more."""
    steps: Word
    """Total number of steps."""
    rows: Word
    """Number of sequences."""
    few: Word
    """Sequences per register tile."""
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
        in_all: Bytes to it from the beginning of an array (steps, rows, size).
        z: Address of the inputs of the first gate.
    """

    at: Word
    some: Condition
    cont: Vector
    in_all: Word
    z: Word


class Cell(Protocol):
    """One sort of cell, in the kernel that its piece is written into."""

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
        """Write how it begins with the first step."""

    def step(self, place: Place, inputs: Sequence[Vector]) -> Vector:
        """Write a step; return the hidden state."""


class LstmFields(StepFields):
    """Those of an LSTM."""

    first_c: Address
    """Address of the cells at the beginning, (rows, size)."""
    last_c: Address
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


class LearningLstmFields(LstmFields):
    """Those of an LSTM that gradients are wanted of."""

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
        k.store_some(k.load_some(self.f.first_c + at, some), self.f.last_c + at, some)

    def step(self, place: Place, inputs: Sequence[Vector]) -> Vector:
        k, f, some = self._k, self.f, place.some
        *opened, new = inputs
        gates = [*(sigmoid(k, value) for value in opened), tanh(k, new)]
        for gate, value in enumerate(gates):
            k.store_some(value, place.z + f.size * (FLOAT * gate), some)
        i, forget, o, g = gates
        before = k.load_some(f.last_c + place.at, some)
        c = place.cont * forget * before + i * g
        squashed = tanh(k, c)
        k.store_some(before, f.cells + place.in_all, some)
        k.store_some(c, f.last_c + place.at, some)
        k.store_some(squashed, f.squashed + place.in_all, some)
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
"""Those that keep what gradients need; an RNN's are computed from its hidden states."""
