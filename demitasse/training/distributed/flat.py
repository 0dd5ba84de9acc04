"""The gradients of a net in one array, with room for what else is reduced along with them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise

from demitasse.backends.arrays import Array
from demitasse.backends.collective import Collective
from demitasse.blob import Blob
from demitasse.net import Net
from demitasse.training.distributed.where import OnHost, Where

__all__ = ["Flat", "broadcast", "carried_params"]


def carried_params(net: Net) -> list[Blob]:
    """Return the parameters that forward passes change: running averages."""
    own = {id(blob) for blob in net.structure.params_list}
    return [blob for layer in net.layers for blob in layer.state_blobs() if id(blob) in own]


class Flat:
    """Where the gradients of a net's parameters lie, one after the other; they are not copied.

    Behind them come the running averages that the net's passes have changed, and the loss.

    Args:
        net: The net.
        where: On which side they lie.

    Attributes:
        array: All of it, one-dimensional.
    """

    def __init__(self, net: Net, where: Where | None = None) -> None:
        self._where = OnHost() if where is None else where
        self._params, self._carried = net.learnable_params, carried_params(net)
        sizes = [blob.count for blob in (*self._params, *self._carried)]
        self._bounds = list(accumulate(sizes, initial=0))
        with self._where.here():
            self.array = self._where.zeros(sum(sizes) + 1, net.dtype)
            views = [self.array[a:b] for a, b in pairwise(self._bounds)]
            self._gradients, self._averages = views[: len(self._params)], views[len(self._params) :]
            for blob, view in zip(self._params, self._gradients, strict=True):
                self._where.adopt(blob.diff_memory, view)

    def fill(self, loss: float = 0.0) -> None:
        """Bring everything up to date after a net's passes."""
        self.gather(range(len(self._params)))
        self.fill_rest(loss)

    def fill_rest(self, loss: float) -> None:
        """Bring up to date what lies behind the gradients: running averages, and the loss."""
        for blob, view in zip(self._carried, self._averages, strict=True):
            view[...] = self._where.read(blob.data_memory)[: blob.count]
        self.array[-1] = loss

    def gather(self, params: Iterable[int]) -> None:
        """Bring the gradients of some parameters up to date."""
        for index in params:
            blob, view = self._params[index], self._gradients[index]
            gradient = self._where.read(blob.diff_memory)
            if not self._where.holds(blob.diff_memory, view):  # somebody gave it another array
                view[...] = gradient[: blob.count]
                self._where.adopt(blob.diff_memory, view)

    def part(self, first: int, end: int) -> Array:
        """Return the gradients of parameters ``first`` to ``end - 1``. Shape: (n,)."""
        return self.array[self._bounds[first] : self._bounds[end]]

    def rest(self, first: int) -> Array:
        """Return the gradients from parameter ``first`` on, and all behind them. Shape: (n,)."""
        return self.array[self._bounds[first] :]

    def take(self, source: Flat) -> None:
        """Give the net the running averages of ``source``."""
        for blob, view in zip(self._carried, source._averages, strict=True):
            self._where.overwrite(blob.data_memory)[: blob.count] = view

    @property
    def loss(self) -> float:
        """The loss, once the device has come to it."""
        return self._where.number(self.array[-1:])

    def overwritten(self, params: Iterable[int] | None = None) -> None:
        """Take note that gradients in the array are new: those of some parameters, or all."""
        for index in range(len(self._params)) if params is None else params:
            self._where.change(self._params[index].diff_memory)


def broadcast(net: Net, collective: Collective, where: Where) -> None:
    """Give all members of a group the parameters that the first has."""
    for memory in dict.fromkeys(blob.data_memory for blob in net.structure.params_list):
        collective.broadcast(where.change(memory))
