"""Cells of recurrent layers: what a time step computes besides matrix products.

They work on arrays of one step, (N, ...), that lie in the cache when the products have been there.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

__all__ = ["CELLS", "Cell", "LstmCell", "RnnCell", "past_tanh"]


class Cell(Protocol):
    """One sort of cell, for T steps of N sequences with H hidden values."""

    gates: int
    """Gates of a hidden value."""

    states: int
    """Arrays of a state; the first is the hidden state."""

    nbytes: int
    """Bytes it holds."""

    def __init__(self, steps: int, rows: int, size: int) -> None: ...

    def begin(self, states: list[np.ndarray]) -> None:
        """Begin with these states. Shapes: each (N, H)."""

    def end(self) -> list[np.ndarray]:
        """Return the states at the end, the hidden one left out."""

    def step(self, t: int, z: np.ndarray, cont: np.ndarray, h: np.ndarray) -> None:
        """Write the hidden state to ``h``; ``z`` becomes what the gradient needs.

        Shapes: z (N, G * H), cont (N, 1), h (N, H).
        """

    def begin_back(self) -> None:
        """Begin with no gradient of the states at the end."""

    def back(self, t: int, z: np.ndarray, cont: np.ndarray, dh: np.ndarray, dz: np.ndarray) -> None:
        """Write the gradient of the gates' inputs to ``dz``; ``dh`` may be spoiled."""


class LstmCell:
    """Gates input, forget, output and new value; the states are h and c."""

    gates, states = 4, 2

    def __init__(self, steps: int, rows: int, size: int) -> None:
        self.size = size
        self.cells = np.zeros((steps + 1, rows, size), np.float32)
        self.squashed = np.zeros((steps, rows, size), np.float32)
        self.scratch, self.dc = (np.zeros((rows, size), np.float32) for _ in range(2))
        self.nbytes = self.cells.nbytes + self.squashed.nbytes

    def begin(self, states: list[np.ndarray]) -> None:
        self.cells[0] = states[1]

    def end(self) -> list[np.ndarray]:
        return [self.cells[-1]]

    def step(self, t: int, z: np.ndarray, cont: np.ndarray, h: np.ndarray) -> None:
        opened, half = z[:, : 3 * self.size], np.float32(0.5)
        # sigmoid by way of tanh, which cannot overflow
        np.multiply(opened, half, out=opened)
        np.tanh(z, out=z)
        np.multiply(opened, half, out=opened)
        np.add(opened, half, out=opened)
        i, f, o, g = self._parts(z)
        c, squashed = self.cells[t + 1], self.squashed[t]
        np.multiply(cont, f, out=c)
        np.multiply(c, self.cells[t], out=c)
        np.multiply(i, g, out=self.scratch)
        np.add(c, self.scratch, out=c)
        np.tanh(c, out=squashed)
        np.multiply(o, squashed, out=h)

    def begin_back(self) -> None:
        self.dc[...] = 0

    def back(self, t: int, z: np.ndarray, cont: np.ndarray, dh: np.ndarray, dz: np.ndarray) -> None:
        i, f, o, g = self._parts(z)
        di, df, do, dg = self._parts(dz)
        dc, s, squashed = self.dc, self.scratch, self.squashed[t]
        past_tanh(squashed, dh, s)
        np.multiply(s, o, out=s)
        np.add(dc, s, out=dc)
        np.multiply(dc, i, out=s)
        past_tanh(g, s, dg)
        np.multiply(dc, g, out=di)
        np.multiply(dh, squashed, out=do)
        np.multiply(dc, cont, out=dc)
        np.multiply(dc, self.cells[t], out=df)
        for gate, gradient in ((i, di), (f, df), (o, do)):
            np.multiply(gradient, gate, out=gradient)
            np.subtract(1, gate, out=s)
            np.multiply(gradient, s, out=gradient)
        np.multiply(dc, f, out=dc)

    def _parts(self, z: np.ndarray) -> list[np.ndarray]:
        return [z[:, first : first + self.size] for first in range(0, 4 * self.size, self.size)]


class RnnCell:
    """h = tanh(z); the state is h."""

    gates, states, nbytes = 1, 1, 0

    def __init__(self, steps: int, rows: int, size: int) -> None:
        del steps, rows, size

    def begin(self, states: list[np.ndarray]) -> None:
        del states

    def end(self) -> list[np.ndarray]:
        return []

    def step(self, t: int, z: np.ndarray, cont: np.ndarray, h: np.ndarray) -> None:
        del t, cont
        np.tanh(z, out=z)
        h[...] = z

    def begin_back(self) -> None:
        """Nothing: the hidden state is all there is."""

    def back(self, t: int, z: np.ndarray, cont: np.ndarray, dh: np.ndarray, dz: np.ndarray) -> None:
        del t, cont
        past_tanh(z, dh, dz)


def past_tanh(squashed: np.ndarray, gradient: np.ndarray, out: np.ndarray) -> None:
    """Write gradient * (1 - squashed^2): what passes a tanh."""
    np.multiply(squashed, squashed, out=out)
    np.subtract(1, out, out=out)
    np.multiply(out, gradient, out=out)


CELLS: dict[str, type[Cell]] = {"LSTM": LstmCell, "RNN": RnnCell}
