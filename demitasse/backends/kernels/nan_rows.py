"""Rows that hold NaN or infinity, and whose results are therefore NaN.

A softmax whose exponential makes a number of everything would hide that a net has diverged.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word, chunk, clamp_min, fma
from demitasse.backends.kernels.tuning import Tuning

FEWEST_EACH = 1 << 15
"""Elements of a thread at least: to meet others takes as long as to look at so many."""


class NanRowsFields(Struct):
    """Rows, and what was made of them."""

    x: Address
    """Address of the first row."""
    y: Output
    """Address of the first row of results."""
    rows: Word
    """Number of rows."""
    length: Word
    """Elements of a row."""


@cache
def _kernel(width: int) -> int:
    """Return the address of the kernel."""
    name = f"lost_rows{width}"
    return compiled(name, lambda module: _write(module, name, width), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = NanRowsFields.read(k)
    none, noted = k.constant(0.0), k.scratch(1)
    row_bytes = f.length * FLOAT
    whole_bytes = row_bytes // k.vector_bytes * k.vector_bytes

    def marked(mark: Vector, x: Vector) -> Vector:
        """Return 0, or NaN from where x was NaN or infinite; minus infinity has no part in it."""
        return fma(clamp_min(x, none), none, mark)

    begin, end = chunk(f.rows, *k.thread())
    with k.loop(end, begin) as row:
        x, y = f.x + row.i * row_bytes, f.y + row.i * row_bytes
        with k.loop(whole_bytes, 0, k.vector_bytes, vectors=[none]) as place:
            place.vectors = [marked(place.vectors[0], k.load(x + place.i))]
        with k.loop(row_bytes, whole_bytes, FLOAT, vectors=place.vectors) as rest:
            rest.vectors = [marked(rest.vectors[0], k.broadcast(x + rest.i))]
        k.store(rest.vectors[0], noted)
        mark = none
        for lane in range(width):
            mark = mark + k.broadcast(noted + FLOAT * lane)
        k.store(mark, noted)
        is_lost = k.load_word(noted) // 2 > 0  # as an integer it is 0, or that of a NaN
        with k.when(is_lost), k.loop(row_bytes, 0, FLOAT) as place:
            k.store(k.load_float(noted), y + place.i)
    k.done()


class NanRows:
    """Writes NaN into every row of results whose row holds NaN or infinity.

    Args:
        rows: How many there are, one behind the other.
        length: Elements of a row.
        tuning: The kernel's vectors and threads.
    """

    def __init__(self, rows: int, length: int, tuning: Tuning) -> None:
        self.tuning, self._kernel = tuning, _kernel(tuning.width)
        self._threads = max(1, min(tuning.threads, rows * length // FEWEST_EACH))
        self._arguments = Arguments(
            NanRowsFields.values(x=RUNTIME, y=RUNTIME, rows=rows, length=length)
        )

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        """Look at the rows of ``x``; write to those of ``y``, which lie as they do."""
        self._arguments.run(self._kernel, self._threads, {"x": x, "y": y})

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"NaN llvm:{self.tuning.instructions}"
