"""Numbers of the host that change from pass to pass, where kernels read them on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import Engine

__all__ = ["Cell"]


class Cell:
    """A small array on the device that holds numbers of the host.

    A kernel's own arguments are fixed once it is recorded; what it reads from a cell is what was
    written there last. While work is recorded nothing is written: the cell is brought up to date
    before each time that the work is played.

    Args:
        engine: Where the array is.
        count: How many numbers.
        dtype: Of the array.
    """

    def __init__(self, engine: Engine, count: int, dtype: str) -> None:
        self.array: Array = engine.empty(count, dtype)
        self._engine, self._held = engine, b""

    def holding(self, values: Callable[[], np.ndarray]) -> Array:
        """Return the array, holding what ``values`` gives; asked again whenever it is played.

        Shapes: values (count,), of the cell's dtype -> (count,).
        """
        renew = partial(self._renew, values)
        if self._engine.recorded is None:
            renew()
        else:
            self._engine.recorded.append(renew)
        return self.array

    def write(self, values: np.ndarray) -> None:
        """Bring numbers to the device, unless it has them. Shape: (count,)."""
        bits = values.tobytes()
        if bits != self._held:
            self._held = b""  # until they are there
            self._engine.put(values, self.array)
            self._held = bits

    def _renew(self, values: Callable[[], np.ndarray]) -> None:
        self.write(values())
