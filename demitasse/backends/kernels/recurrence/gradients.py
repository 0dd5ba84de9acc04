"""Gradients of cells: from those of what a step gives to those of the inputs of its gates.

A gradient is a piece of a kernel for a vector of hidden values of one sequence in one step. The
operations are those of portable code, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Struct
from demitasse.backends.kernels.language.words import FLOAT, Condition, Vector, Word

__all__ = ["GRADIENTS", "BackFields", "CellGradient", "Spot"]


class BackFields(Struct):
    """Some steps of some sequences, from later ones to earlier ones. All arrays are in C order."""

    weight: Address
    """Address of the weights of the hidden state, (gates * size, size)."""
    cont: Address
    """Address of what the states are multiplied with before each step, (steps, rows)."""
    dy: Address
    """Address of the gradients of the hidden states from above, (steps, rows, size)."""
    dz: Address
    """Address of those of the inputs of the gates, (steps, rows, gates * size); written."""
    known: Address
    """Address of what the gates let through, (steps, rows, gates * size); of an RNN the hidden
    states."""
    first: Word
    """The first step."""
    last: Word
    """The last one that is computed, and the earliest."""
    steps: Word
    """Total number of steps."""
    rows: Word
    """Number of sequences."""
    few: Word
    """Sequences per register tile."""
    size: Word
    """Hidden values of each."""
    blocks: Word
    """Blocks of some vectors of them."""


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
    """The gradient of one sort of cell, in the kernel that its piece is written into."""

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
    """Those of an LSTM."""

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
        i, forget, o, g = (k.load_some(known + gate_bytes * gate, some) for gate in range(4))
        squashed = k.load_some(f.squashed + spot.in_all, some)
        dc = k.load_some(f.dc + spot.at, some) + _past_tanh(k, squashed, dh) * o
        before = dc * spot.cont
        gradients = (
            _past_sigmoid(k, i, dc * g),
            _past_sigmoid(k, forget, before * k.load_some(f.cells + spot.in_all, some)),
            _past_sigmoid(k, o, dh * squashed),
            _past_tanh(k, g, dc * i),
        )
        for gate, gradient in enumerate(gradients):
            k.store_some(gradient, dz + gate_bytes * gate, some)
        k.store_some(before * forget, f.dc + spot.at, some)


class RnnGradient:
    """Gradient of h = tanh(z)."""

    gates: ClassVar[int] = 1
    fields: ClassVar[type[BackFields]] = BackFields

    def __init__(self, k: Kernel) -> None:
        self._k, self.f = k, BackFields.read(k)

    def step(self, spot: Spot, dh: Vector) -> None:
        k, at, some = self._k, spot.in_gates, spot.some
        k.store_some(_past_tanh(k, k.load_some(self.f.known + at, some), dh), self.f.dz + at, some)


def _past_tanh(k: Kernel, squashed: Vector, gradient: Vector) -> Vector:
    return (k.constant(1.0) - squashed * squashed) * gradient


def _past_sigmoid(k: Kernel, gate: Vector, gradient: Vector) -> Vector:
    return gradient * gate * (k.constant(1.0) - gate)


GRADIENTS: Mapping[str, type[CellGradient]] = {"LSTM": LstmGradient, "RNN": RnnGradient}
