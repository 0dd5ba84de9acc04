"""Local response normalisation and its gradient in kernels of our own."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.calls import KernelCall
from demitasse.backends.onednn.ports import Reader, Writer

__all__ = ["LRNCall", "LRNGradientCall", "Response"]


class Response(Protocol):
    """Kernels that normalise by neighbours, in both directions."""

    scratch_size: int

    @property
    def code(self) -> str:
        """Name of what runs."""

    def forward(self, source: np.ndarray, target: np.ndarray, scratch: np.ndarray) -> None:
        """Normalise."""

    def backward(
        self, source: np.ndarray, dy: np.ndarray, dx: np.ndarray, scratch: np.ndarray
    ) -> None:
        """Write the gradient of the input."""


class LRNCall(KernelCall):
    """The normalisation.

    Args:
        engine: The engine.
        kernel: The kernels.
        source: What is read.
        target: What is written, in the same layout.
    """

    def __init__(self, engine: Engine, kernel: Response, source: Reader, target: Writer) -> None:
        self._kernel, self._source, self._target = kernel, source, target
        super().__init__(engine, (source, target), kernel.code, 0)
        target.promise(engine)

    def __call__(self) -> None:
        source, target = self._source.array(), self._target.array()
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel.forward(source, target, scratch)


class LRNGradientCall(KernelCall):
    """The gradient of its input.

    Args:
        engine: The engine.
        kernel: The kernels.
        source: The input.
        dy: The gradient of the output, in the same layout.
        dx: That of the input, in it too.
    """

    def __init__(
        self, engine: Engine, kernel: Response, source: Reader, dy: Reader, dx: Writer
    ) -> None:
        self._kernel, self._source, self._dy, self._dx = kernel, source, dy, dx
        super().__init__(engine, (source, dy, dx), kernel.code, 0)
        dx.promise(engine)

    def __call__(self) -> None:
        source, dy, dx = self._source.array(), self._dy.array(), self._dx.array()
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel.backward(source, dy, dx, scratch)
