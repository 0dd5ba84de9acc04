"""Normalisation of each channel of each image in a kernel of our own."""

from __future__ import annotations

import numpy as np

from demitasse.backends.kernels.norm.planes import PlaneNorm
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.steps.kernel_calls import KernelCall

__all__ = ["PlaneNormCall"]


class PlaneNormCall(KernelCall):
    """The normalisation.

    Args:
        engine: The engine.
        kernel: The kernel.
        source: What is read.
        target: What is written, in the same layout.
    """

    def __init__(self, engine: Engine, kernel: PlaneNorm, source: Reader, target: Writer) -> None:
        self._kernel, self._source, self._target = kernel, source, target
        super().__init__(engine, (source, target), kernel.code)
        target.promise(engine)

    @property
    def deviations(self) -> np.ndarray:
        """What each channel of each image was divided by. Shape: (N, C)."""
        return self._kernel.deviations

    def __call__(self) -> None:
        source = self._source.array()
        self._kernel(source, self._target.array())
