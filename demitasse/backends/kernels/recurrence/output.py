"""Output of an RNN: tanh of its output layer."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import EACH_CALL, Address, Arguments, Struct
from demitasse.backends.kernels.language.words import Word, chunk, minimum
from demitasse.backends.kernels.squash import tanh
from demitasse.backends.kernels.tuning import Tuning

__all__ = ["Squashing"]

FEWEST_EACH = 1 << 14
"""Elements of a thread at least: to meet others takes as long as to compute so many."""


class SquashFields(Struct):
    """Numbers that become their tanh."""

    x: Address
    """Address of the first one."""
    count: Word
    """Number of elements."""


@cache
def _kernel(width: int) -> int:
    """Return the address of the kernel."""
    name = f"squashing{width}"
    return compiled(name, lambda module: _write(module, name, width), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = SquashFields.read(k)
    begin, end = chunk((f.count + width - 1) // width, *k.thread())
    with k.loop(end, begin) as vector:
        at, some = vector.i * k.vector_bytes, k.first(minimum(f.count - vector.i * width, width))
        k.store_some(tanh(k, k.load_some(f.x + at, some)), f.x + at, some)
    k.done()


class Squashing:
    """x = tanh(x).

    Args:
        count: How many numbers there are.
        tuning: The kernel's vectors and threads.
    """

    def __init__(self, count: int, tuning: Tuning) -> None:
        self.tuning, self._kernel = tuning, _kernel(tuning.width)
        self._threads = max(1, min(tuning.threads, count // FEWEST_EACH))
        self._arguments = Arguments(SquashFields.values(x=EACH_CALL, count=count))

    def __call__(self, x: np.ndarray) -> None:
        """Compute all of them."""
        self._arguments.run(self._kernel, self._threads, {"x": x})

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"tanh llvm:{self.tuning.instructions}"
