"""Functional backends: the arrays and functions of a backend, without writes in place.

Memories on a functional backend replace their arrays, Steps write nothing in place, and no value is
copied to the host. The layers then compute a pure function, which JAX and PyTorch trace.
"""

from contextlib import suppress
from functools import cache
from typing import Any, ClassVar

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.base import Backend
from demitasse.backends.step import Lowerings
from demitasse.errors import ErrorCode, NetError

UPLOAD, DOWNLOAD = "a write in place", "a copy of values to the host"


class FunctionalBackend(Backend):
    """Overrides of a backend's methods; ``functional_class`` combines both."""

    mutable = False
    shares_host = False
    queues = False
    records_arrays = False
    lowerings: ClassVar[Lowerings] = {}
    updates = recorder = connector = None
    view, storages, stored = Backend.view, Backend.storages, Backend.stored
    guard, uploader = Backend.guard, Backend.uploader

    def upload(self, host: np.ndarray, device: Array) -> None:
        raise _refused(UPLOAD)

    def download(self, device: Array, host: np.ndarray) -> None:
        raise _refused(DOWNLOAD)

    def to_host(self, array: Array) -> np.ndarray:
        raise _refused(DOWNLOAD)

    def set_at(self, array: Array, index: Any, values: Any) -> Array:
        return super().set_at(self._copy(array, values), index, values)

    def add_at(self, array: Array, index: Any, values: Array) -> Array:
        return super().add_at(self._copy(array, values), index, values)

    def random_bits(self, seed: int, stream: int, passes: Any, count: int, first: int = 0) -> Array:
        if passes is None:
            message = "the layer draws random numbers; pass key=..., the number of the pass"
            raise NetError(message, code=ErrorCode.MISSING, field="key")
        with suppress(TypeError):  # JAX's refusal of a number that is traced
            passes = int(passes)
        return super().random_bits(seed, stream, passes, count, first)

    def _copy(self, array: Array, values: Any) -> Array:
        """Return a copy of ``array`` that takes ``values``; under ``vmap`` with their batch."""
        xp = self.xp
        if not hasattr(values, "shape"):
            return xp.astype(array, array.dtype, copy=True)
        return array + xp.astype(xp.sum(xp.zeros_like(values)), array.dtype)


def _refused(what: str) -> NetError:
    message = f"{what} is no part of a pure function; run the net itself, without as_function()"
    return NetError(message, code=ErrorCode.UNSUPPORTED)


@cache
def functional_class(kind: type[Backend]) -> type[Backend]:
    """Return the functional class of a backend's class."""
    own: dict[str, Any] = {}
    if not kind.mutable:
        own = {name: getattr(kind, name) for name in ("set_at", "add_at", "lowerings")}
    return type(f"Functional{kind.__name__}", (FunctionalBackend, kind), own)
