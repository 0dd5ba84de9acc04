"""The host itself: numpy arrays, portable layers and a few kernels."""

from contextlib import AbstractContextManager
from functools import cached_property
from typing import ClassVar

import numpy as np

from demitasse.backends import random
from demitasse.backends.base import Backend
from demitasse.backends.numpy import updates
from demitasse.backends.numpy.lowerings import LOWERINGS
from demitasse.backends.numpy.products import BlasThreads, blas
from demitasse.backends.numpy.step import Engine
from demitasse.backends.step import Lowerings
from demitasse.backends.updates import UpdateKernels
from demitasse.core.threads import wanted_threads

ELEMENTS = 1 << 16  # most elements that are scattered at once, unless a single row has more


class _Entered(BlasThreads):
    """A pass: overflow and NaN are values, as on every other device; debug_info finds them."""

    __slots__ = ("_quiet",)

    def __init__(self, threads: int | None) -> None:
        super().__init__(threads)
        self._quiet = np.errstate(all="ignore")

    def __enter__(self) -> None:
        super().__enter__()
        try:
            self._quiet.__enter__()
        except BaseException:
            super().__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._quiet.__exit__(None, None, None)
        finally:
            super().__exit__()


class NumpyBackend(Backend):
    """numpy on the host; device arrays are host arrays."""

    name = "numpy"
    shares_host = True
    lowerings: ClassVar[Lowerings] = LOWERINGS
    blas_threads: ClassVar[int | None] = None
    """Threads of numpy's BLAS in a pass; None for the configured number."""
    xp = np
    array_device = "cpu"

    @classmethod
    def devices(cls) -> list[str]:
        return ["numpy"]

    def enter(self) -> AbstractContextManager[None]:
        return _Entered(self.blas_threads)

    def environment(self) -> dict[str, str]:
        found = {"numpy": np.__version__}
        for library in blas():
            found["BLAS"] = f"OpenBLAS {library.version} {library.architecture}"
            threads = self.blas_threads or wanted_threads(library.get_num_threads())
            found["BLAS threads"] = str(threads)  # during a pass
        return found

    def zeros(self, size: int, dtype: str) -> np.ndarray:
        return np.zeros(size, dtype)

    def upload(self, host: np.ndarray, device: np.ndarray) -> None:
        device[...] = host

    def download(self, device: np.ndarray, host: np.ndarray) -> None:
        host[...] = device

    def asarray(self, host: np.ndarray) -> np.ndarray:
        return np.array(host)

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    def view(self, flat: np.ndarray, shape: tuple[int, ...], count: int) -> np.ndarray:
        return flat[:count].reshape(shape)

    def scatter_add(self, rows: np.ndarray, indices: np.ndarray, size: int) -> np.ndarray:
        count, width = rows.shape
        total = np.zeros(size * width, rows.dtype)
        columns = np.arange(width)
        # numpy adds single elements several times as fast as rows; a few at once, since their
        # indices need memory, too
        step = max(1, ELEMENTS // max(1, width))
        for first in range(0, count, step):
            part = slice(first, first + step)
            np.add.at(
                total, (indices[part, None] * width + columns).reshape(-1), rows[part].reshape(-1)
            )
        return total.reshape(size, width)

    def random_bits(
        self, seed: int, stream: int, passes: int, count: int, first: int = 0
    ) -> np.ndarray:
        return random.bits(seed, stream, passes, count, first)

    @cached_property
    def engine(self) -> Engine:
        return Engine()

    @property
    def updates(self) -> UpdateKernels | None:
        return updates
