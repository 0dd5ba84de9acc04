"""Calls of kernels that make one blob of another."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.calls import (
    KernelCall,
)
from demitasse.backends.onednn.ports import Reader, Writer

__all__ = ["MapCall", "Maps", "Offset", "OffsetCall"]


class Maps(Protocol):
    """A kernel that reads one array and writes another."""

    @property
    def code(self) -> str:
        """Name of the code."""
        ...

    def __call__(self, source: np.ndarray, target: np.ndarray, /) -> None:
        """Write the target."""
        ...


class MapCall(KernelCall):
    """A kernel that makes one blob of another.

    Args:
        engine: The engine.
        source: What is read.
        target: What is written.
        kernel: The kernel.
    """

    def __init__(self, engine: Engine, source: Reader, target: Writer, kernel: Maps) -> None:
        self._source, self._target, self._kernel = source, target, kernel
        super().__init__(engine, (source, target), kernel.code)
        target.promise(engine)

    def __call__(self) -> None:
        self._kernel(self._source.array(), self._target.array())


class Offset(Protocol):
    """A kernel of convolutions that are given their offsets in each call."""

    scratch_size: int

    @property
    def code(self) -> str:
        """Name of the code."""
        ...

    @property
    def filters_nbytes(self) -> int:
        """Bytes of all filters that it holds."""
        ...

    def __call__(
        self, source: np.ndarray, target: np.ndarray, added: Any, scratch: np.ndarray, /
    ) -> None:
        """Write the target."""
        ...


class OffsetCall(KernelCall):
    """Convolutions that run as one, with what a normalisation before or after them does.

    Args:
        engine: The engine.
        source: What is read.
        target: What is written.
        kernel: The kernel.
        offsets: Those of the outputs, as the kernel takes them; they may change between calls.
        other: What else is added to the outputs, by kernels that take it behind the offsets.
    """

    def __init__(
        self,
        engine: Engine,
        source: Reader,
        target: Writer,
        kernel: Offset,
        offsets: np.ndarray | tuple[np.ndarray, ...],
        other: Reader | None = None,
    ) -> None:
        self._source, self._target, self._other = source, target, other
        self._kernel, self._offsets = kernel, offsets
        ports = (source, target) if other is None else (source, other, target)
        super().__init__(engine, ports, kernel.code)
        target.promise(engine)

    @property
    def kept(self) -> int:
        return self._kernel.filters_nbytes

    def __call__(self) -> None:
        added = self._offsets
        if self._other is not None:
            added = (*added, self._other.array())
        source, target = self._source.array(), self._target.array()
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(source, target, added, scratch)
