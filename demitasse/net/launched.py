"""Whole passes of a net, launched as one where the device can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.memory import SyncedMemory
from demitasse.net.launching import Launching, Work, Working

__all__ = ["Launched", "LaunchedPasses"]


class Net(Working, Protocol):
    """A net (``demitasse.net.Net``)."""

    def memories(self) -> Sequence[SyncedMemory]:
        """Return all memories that passes work on."""

    def queue_sources(self) -> None:
        """Run the layers at the beginning, which only bring data in."""

    def queue_rest(self, *, backward: bool) -> Array | None:
        """Run the layers behind those forward, and back if asked for; return the loss, ()."""


class LaunchedPasses:
    """Whole passes over a net: layer by layer at first, later as one.

    Recorded is what comes behind the layers that bring data in.

    Args:
        net: The net.
        backward: Whether each forward pass is followed by backward.
    """

    def __init__(self, net: Net, *, backward: bool) -> None:
        self._net, self._backward = net, backward
        self._launching = Launching(net, "training passes" if backward else "forward passes")
        self._loss: Array | None = None

    def begin(self) -> bool:
        """Whether the next passes are for ``run``; otherwise they are to be queued."""
        return self._launching.begin()

    def run(self) -> Array | None:
        """Run all layers.

        Returns:
            The loss, () on the device, which the next run may overwrite; None where there is none.
        """
        self._net.queue_sources()
        self._launching.run(Work(self._rest, lambda _: self._rest(), self._net.memories))
        return self._loss

    def _rest(self) -> None:
        self._loss = self._net.queue_rest(backward=self._backward)


class Launched:
    """The passes of a net that may be launched as one.

    Passes that begin with cleared gradients and those that add to gradients are recorded apart:
    the first ones clear them on the device.

    Args:
        net: The net.

    Attributes:
        forward: Forward passes alone.
    """

    def __init__(self, net: Net) -> None:
        self.forward = LaunchedPasses(net, backward=False)
        self._first, self._more = (LaunchedPasses(net, backward=True) for _ in range(2))

    def training(self, params: Sequence[Blob]) -> LaunchedPasses:
        """Return forward and backward, for parameters whose gradients are as they are now."""
        cleared = all(blob.diff_memory.cleared for blob in params)
        return self._first if cleared else self._more
