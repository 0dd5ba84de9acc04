"""Channels times gates in a kernel of our own."""

from __future__ import annotations

from demitasse.backends.kernels.gates import GatedChannels
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.steps.kernel_calls import KernelCall

__all__ = ["GatesCall"]


class GatesCall(KernelCall):
    """The products.

    Args:
        engine: The engine.
        kernel: The kernel.
        sources: The gates, what is multiplied, and what is added or None.
        target: What is written.
    """

    def __init__(
        self,
        engine: Engine,
        kernel: GatedChannels,
        sources: tuple[Reader, Reader, Reader | None],
        target: Writer,
    ) -> None:
        self._kernel, self._sources, self._target = kernel, sources, target
        ports = [port for port in (*sources, target) if port is not None]
        super().__init__(engine, tuple(ports), kernel.code)
        target.promise(engine)

    def __call__(self) -> None:
        gates, x, other = self._sources
        added = None if other is None else other.array()
        self._kernel(gates.array(), x.array(), added, self._target.array())
