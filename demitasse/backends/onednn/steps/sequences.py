"""The steps of a recurrent layer with gradients: in a kernel of our own, or one by one.

One by one, the library multiplies with the weights of the hidden state, and numpy does what the
cells do.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.onednn.library.attributes import lent_attributes
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.recurrent import learned_steps
from demitasse.backends.onednn.step import Runnable
from demitasse.backends.onednn.steps.cells import CELLS
from demitasse.backends.onednn.steps.products import Own, Product
from demitasse.backends.step import Declined, Operand

__all__ = ["Steps", "sequence"]


class Steps(Protocol):
    """T steps of N sequences, with G gates for each of H hidden values.

    Attributes:
        before: The hidden states that steps begin with. Shape: (T, N, H).
        states: How many arrays a state has; the first is the hidden one.
        calls: What of the library they run forward.
        nbytes: Bytes that they hold.
    """

    before: np.ndarray
    states: int

    @property
    def calls(self) -> Sequence[Runnable]: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def code(self) -> str:
        """Name of the code that runs forward, beside that of its calls."""

    @property
    def backward_code(self) -> str:
        """Name of the code that runs backward."""

    def forward(
        self, states: Sequence[np.ndarray], cont: np.ndarray, hidden: np.ndarray
    ) -> Sequence[np.ndarray]:
        """Write the hidden states, and return the states at the end.

        Shapes: states (N, H), cont (T, N, 1), hidden (T, N, H).
        """

    def prepare_backward(self, dz: np.ndarray, known: np.ndarray) -> None:
        """Take where the gradients of the inputs of the gates go, and what the gates let through.

        Shapes: (T, N, G * H).
        """

    def backward(self, cont: np.ndarray, dy: np.ndarray) -> None:
        """Compute them from those of the hidden states. Shape: (T, N, H)."""


class ApartSteps:
    """Those that run one by one.

    Args:
        engine: The engine.
        op: The operation.
        weight: That of the hidden state.
        z: The inputs of the gates, which become what gradients need. Shape: (T, N, G * H).
    """

    code = backward_code = "numpy"

    def __init__(self, engine: Engine, op: ops.Recurrent, weight: Operand, z: np.ndarray) -> None:
        t, n, h = op.steps, op.rows, op.m
        self._steps, self._z, self._cell = t, z, CELLS[op.cell](t, n, h)
        self.before = aligned(t * n * h).reshape(t, n, h)
        self._dh = aligned(n * h).reshape(n, h)
        self.states = self._cell.states
        with lent_attributes(engine.library, keep=1.0) as adding:
            again = Product(engine, n, weight, attributes=adding)
        self._h_port, self._z_port = Own(Arg.SRC, again.x), Own(Arg.DST, again.y)
        self._from_hidden = again.forward(self._h_port, self._z_port)
        self._again, self.calls = again, [self._from_hidden]

    @property
    def nbytes(self) -> int:
        return self.before.nbytes + self._dh.nbytes + self._cell.nbytes

    def forward(
        self, states: Sequence[np.ndarray], cont: np.ndarray, hidden: np.ndarray
    ) -> Sequence[np.ndarray]:
        cell, h = self._cell, states[0]
        cell.begin(list(states))
        for t in range(self._steps):
            np.multiply(cont[t], h, out=self.before[t])
            self._h_port.buffer, self._z_port.buffer = self.before[t], self._z[t]
            self._from_hidden()
            h = hidden[t]
            cell.step(t, self._z[t], cont[t], h)
        return [h, *cell.end()]

    def prepare_backward(self, dz: np.ndarray, known: np.ndarray) -> None:
        del known  # it is what the inputs have become
        self._dz, self._dz_port = dz, Own(Arg.DIFF_DST, self._again.y)
        dh = Own(Arg.DIFF_SRC, self._again.x, self._dh)
        self._from_gates = self._again.gradient(self._dz_port, dh)

    def backward(self, cont: np.ndarray, dy: np.ndarray) -> None:
        cell, dh, dz = self._cell, self._dh, self._dz
        dh[...] = 0
        cell.begin_back()
        for t in reversed(range(self._steps)):
            np.add(dh, dy[t], out=dh)
            cell.back(t, self._z[t], cont[t], dh, dz[t])
            if t:  # gradients do not cross passes
                self._dz_port.buffer = dz[t]
                self._from_gates()
                np.multiply(dh, cont[t], out=dh)


def sequence(engine: Engine, op: ops.Recurrent, weight: Operand, z: np.ndarray) -> Steps:
    """Return the steps of a recurrent layer.

    Args:
        engine: The engine.
        op: The operation.
        weight: That of the hidden state.
        z: The inputs of the gates, which become what gradients need. Shape: (T, N, G * H).
    """
    with suppress(Declined):
        return learned_steps(engine, op, weight, z)
    return ApartSteps(engine, op, weight, z)
