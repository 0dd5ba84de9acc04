"""Forward passes of LSTM and RNN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import RUNTIME, Address, Arguments, Struct
from demitasse.backends.kernels.language.words import Word, chunk, minimum
from demitasse.backends.kernels.math_functions import tanh
from demitasse.backends.kernels.recurrence.cells import CELLS, LEARNING, MOST_ROWS, write
from demitasse.backends.kernels.tuning import TunedKernel, Tuning

FEWEST_EACH = 1 << 16
"""Multiplications of a step for each thread at least: to meet others takes as long as these."""


@cache
def _kernel(cell: str, width: int, *, learns: bool) -> int:
    """Return the address of the kernel."""
    name = f"{'learning' if learns else 'recurrence'}_{cell.lower()}{width}"
    sort = (LEARNING if learns else CELLS)[cell]
    return compiled(name, partial(write, name=name, width=width, sort=sort), name)[name]


class SavedStates(NamedTuple):
    """Values that forward steps keep for the backward pass.

    Attributes:
        before: The hidden states that they begin with. Shape: (T, N, H).
        cells: The cells that they begin with, of an LSTM. Shape: (T, N, H).
        squashed: The tanh of those that they end with, of an LSTM. Shape: (T, N, H).
    """

    before: np.ndarray
    cells: np.ndarray
    squashed: np.ndarray

    @classmethod
    def of(cls, cell: str, shape: tuple[int, int, int]) -> SavedStates:
        """Return memory for steps of this shape, (T, N, H)."""
        sizes = [math.prod(shape), *[math.prod(shape) if cell == "LSTM" else 0] * 2]
        return cls(*(aligned(size).reshape(shape if size else 0) for size in sizes))


class Recurrence:
    """T steps of N sequences, with G gates for each of H hidden values.

    Args:
        cell: "LSTM" or "RNN".
        z: The inputs of the gates; read in each call. Those of an LSTM become what its gates let
            through where that is kept. Shape: (T, N, G * H).
        tuning: The kernel's vectors and threads.
        static: What each sequence adds to its inputs in all steps; read in each call. Shape:
            (N, G * H).
        kept: Where to keep what gradients need; None where there are none.

    Attributes:
        state_count: How many arrays a state has; the first is the hidden state.
        nbytes: Bytes that it holds.
    """

    def __init__(
        self,
        cell: str,
        z: np.ndarray,
        tuning: Tuning,
        *,
        static: np.ndarray | None = None,
        kept: SavedStates | None = None,
    ) -> None:
        self.cell, self.tuning = (LEARNING if kept else CELLS)[cell], tuning
        steps, rows, wide = z.shape
        size = wide // self.cell.gates
        self._name, self._steps = cell, steps
        self._kernel = _kernel(cell, tuning.width, learns=kept is not None)
        before = kept.before if kept else aligned(2 * rows * size)
        self.state_count, self.nbytes = len(self.cell.states) // 2, before.nbytes
        more = {"cells": kept.cells, "squashed": kept.squashed} if kept and cell == "LSTM" else {}
        most = MOST_ROWS[tuning.width][self.cell.gates]
        self._threads = max(1, min(tuning.threads, rows * wide * size // FEWEST_EACH))
        values = self.cell.fields.values(
            weight=RUNTIME,
            z=z,
            static=aligned(wide) if static is None else static,
            static_bytes=0 if static is None else static.strides[0],
            cont=RUNTIME,
            before=before,
            slots=steps if kept else 2,
            hidden=RUNTIME,
            first=RUNTIME,
            last=RUNTIME,
            steps=steps,
            rows=rows,
            few=-(-rows // -(-rows // most)),
            size=size,
            blocks=-(-size // tuning.width),
            **dict.fromkeys(self.cell.states, RUNTIME),
            **more,
        )
        self._arguments = Arguments(values)

    def __call__(
        self,
        weight: np.ndarray,
        cont: np.ndarray,
        begin: Sequence[np.ndarray],
        hidden: np.ndarray,
        end: Sequence[np.ndarray],
    ) -> None:
        """Compute all steps.

        Args:
            weight: Of the hidden state, (G, H, H) in blocks of a vector's hidden values, their
                inputs behind each other; values that fill the last block up are 0.
            cont: What the states are multiplied with before each step. Shape: (T, N).
            begin: The states to begin with. Shapes: (N, H).
            hidden: Gets the hidden states. Shape: (T, N, H).
            end: Gets the states at the end; they may be those of the beginning. Shapes: (N, H).
        """
        states = dict(zip(self.cell.states, [*begin, *end], strict=True))
        each = {"weight": weight, "cont": cont, "hidden": hidden, **states}

        def run(first: int, last: int, threads: int) -> None:
            steps = {"first": first, "last": last}
            self._arguments.run(self._kernel, threads, {**each, **steps})

        if self._threads == 1:
            run(-1, self._steps, 1)
            return
        # threads meet between steps; other threads take a late thread's part
        run(-1, 0, 1)
        for step in range(self._steps):
            run(step, step + 1, self._threads)

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"{self._name.lower()} llvm:{self.tuning.instructions}"


OUTPUT_FEWEST_EACH = 1 << 14
"""Elements of a thread at least: to meet others takes as long as to compute so many."""


class TanhFields(Struct):
    """Numbers that become their tanh."""

    x: Address
    """Address of the first one."""
    count: Word
    """Number of elements."""


@cache
def _output_kernel(width: int) -> int:
    """Return the address of the kernel."""
    name = f"squashing{width}"
    return compiled(name, lambda module: _write(module, name, width), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = TanhFields.read(k)
    begin, end = chunk((f.count + width - 1) // width, *k.thread())
    with k.loop(end, begin) as vector:
        at = vector.i * k.vector_bytes
        some = k.lane_mask(minimum(f.count - vector.i * width, width))
        k.masked_store(tanh(k, k.masked_load(f.x + at, some)), f.x + at, some)
    k.done()


class Squashing(TunedKernel):
    """x = tanh(x).

    Args:
        count: How many numbers there are.
        tuning: The kernel's vectors and threads.
    """

    kernel = "tanh"

    def __init__(self, count: int, tuning: Tuning) -> None:
        self.tuning, self._kernel = tuning, _output_kernel(tuning.width)
        self._threads = max(1, min(tuning.threads, count // OUTPUT_FEWEST_EACH))
        self._arguments = Arguments(TanhFields.values(x=RUNTIME, count=count))

    def __call__(self, x: np.ndarray) -> None:
        """Compute all of them."""
        self._arguments.run(self._kernel, self._threads, {"x": x})
