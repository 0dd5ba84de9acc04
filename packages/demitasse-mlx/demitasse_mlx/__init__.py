"""MLX as a backend of Demitasse: devices ``mlx:cpu`` and, on a Mac, ``mlx:gpu``.

An assignment to an array of MLX replaces the array and is not seen in views, so memories replace
their arrays. MLX computes in float64 on the CPU alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.base import Backend
from demitasse.errors import OutOfMemoryError

__all__ = ["MlxBackend"]

INDICES = {"argmax", "argsort", "searchsorted"}
"""Functions whose results are indices; those of MLX have no sign, and -1 is far outside."""


class Namespace:
    """MLX's functions with the array API's arguments and types of indices."""

    bool = mx.bool_

    def __getattr__(self, name: str) -> Any:
        function = getattr(mx, name)
        if not callable(function) or isinstance(function, type):
            return function

        def call(*arguments: Any, **options: Any) -> Any:
            for option in ("copy", "device", "stable"):
                options.pop(option, None)
            empty = name == "argmax" and not arguments[0].size  # MLX refuses it along any axis
            result = (mx.sum if empty else function)(*arguments, **options)
            return result.astype(mx.int64) if name in INDICES else result

        return call

    @staticmethod
    def exp(array: Array, /) -> Array:
        """Return e to the power of an array; ``mx.exp`` has float32's digits in float64, too."""
        if array.dtype != mx.float64:
            return mx.exp(array)
        return mx.power(mx.array(math.e, mx.float64), array)


class MlxBackend(Backend):
    """One device of MLX.

    Args:
        index: "cpu" or "gpu".
    """

    name = "mlx"
    default_index = "gpu" if mx.metal.is_available() else "cpu"
    mutable = False
    without_float64 = "use mlx:cpu"
    xp = Namespace()

    def __init__(self, index: str = "") -> None:
        super().__init__(index or self.default_index)
        self.has_float64 = self.index == "cpu"
        self.array_device = mx.Device(getattr(mx, self.index))

    @classmethod
    def devices(cls) -> list[str]:
        return ["mlx:gpu", "mlx:cpu"] if mx.metal.is_available() else ["mlx:cpu"]

    @contextmanager
    def enter(self) -> Iterator[None]:
        with mx.stream(self.array_device):
            try:
                yield
            except RuntimeError as error:
                raise self.explained(error) from error.__cause__

    device_scope = enter

    def environment(self) -> dict[str, str]:
        return {"mlx": mx.__version__}

    def explained(self, error: Exception) -> Exception:
        """Return an out-of-memory error of MLX as Demitasse's; other errors as they are."""
        if "malloc" not in str(error):
            return error
        message = f"mlx:{self.index} is out of memory ({error}); reduce the batch size"
        return OutOfMemoryError(message, device=f"mlx:{self.index}")

    # -- arrays --------------------------------------------------------------------------------

    def zeros(self, size: int, dtype: str) -> Array:
        return self.stored(mx.zeros(size, self.dtype(dtype)))

    def stored(self, array: Array) -> Array:
        mx.async_eval(array)  # MLX begins it in no other thread than the present one
        return array

    def asarray(self, host: np.ndarray) -> Array:
        return mx.array(np.ascontiguousarray(host).reshape(host.shape), self.dtype(host.dtype.name))

    def download(self, device: Array, host: np.ndarray) -> None:
        mx.eval(device)
        host[...] = np.array(device)

    def to_host(self, array: Array) -> np.ndarray:
        return np.array(array)

    def holds(self, array: Any) -> bool:
        return isinstance(array, mx.array)

    def set_at(self, array: Array, index: Any, values: Any) -> Array:
        result = mx.array(array)
        result[index] = values
        return result

    def add_at(self, array: Array, index: Any, values: Array) -> Array:
        return array.at[index].add(values)

    # -- work ----------------------------------------------------------------------------------

    def synchronize(self) -> None:
        mx.synchronize(mx.default_stream(self.array_device))

    def custom_gradient(
        self, forward: Callable[..., Any], backward: Callable[..., Any]
    ) -> Callable[..., Sequence[Array]]:
        counts = [0, 0]

        @mx.custom_function
        def run(*arrays: Array) -> list[Array]:
            found, others, saved = forward(*arrays)
            counts[:] = len(found), len(found) + len(others)
            return [*found, *others, *saved] or [mx.zeros(0)]  # MLX crashes on no results

        @run.vjp
        def gradient(arrays: Any, gradients: Any, results: Any) -> list[Array]:
            given = arrays if isinstance(arrays, (list, tuple)) else [arrays]
            found = backward(given, results[counts[1] :], gradients[: counts[0]])
            pairs = zip(given, found, strict=True)
            return [mx.zeros_like(array) if one is None else one for array, one in pairs]

        return lambda *arrays: run(*arrays)[: counts[1]]
