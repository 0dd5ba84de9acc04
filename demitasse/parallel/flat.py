"""The gradients of a net in one array, with room for what else is reduced along with them."""

from __future__ import annotations

from itertools import accumulate, pairwise

from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.net import Net
from demitasse.parallel.where import OnHost, Where

__all__ = ["Flat", "carried_params"]


def carried_params(net: Net) -> list[Blob]:
    """Return the parameters that forward passes change: running averages."""
    own = {id(blob) for blob in net.structure.params_list}
    return [blob for layer in net.layers for blob in layer.carried() if id(blob) in own]


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
        with self._where.here():
            self.array = self._where.zeros(sum(sizes) + 1, net.dtype)
            views = [self.array[a:b] for a, b in pairwise(accumulate(sizes, initial=0))]
            self._gradients, self._averages = views[: len(self._params)], views[len(self._params) :]
            for blob, view in zip(self._params, self._gradients, strict=True):
                self._where.adopt(blob.diff_memory, view)

    def fill(self, loss: float) -> None:
        """Bring everything up to date after a net's passes."""
        self.fill_gradients(range(len(self._params)))
        self.fill_rest(loss)

    def fill_gradients(self, numbers: range) -> None:
        """Bring the gradients of some parameters up to date."""
        where = self._where
        for number in numbers:
            memory, view = self._params[number].diff_memory, self._gradients[number]
            gradient = where.read(memory)
            if not where.holds(memory, view):  # somebody gave the blob another array
                view[...] = gradient[: view.shape[0]]
                where.adopt(memory, view)

    def fill_rest(self, loss: float) -> None:
        """Bring up to date what lies behind the gradients."""
        for blob, view in zip(self._carried, self._averages, strict=True):
            view[...] = self._where.read(blob.data_memory)[: blob.count]
        self.array[-1] = loss

    @property
    def rest(self) -> Array:
        """What lies behind the gradients: running averages, and the loss."""
        return self.array[sum(blob.count for blob in self._params) :]

    def take(self, source: Flat) -> float:
        """Give the net the running averages of ``source``; return its loss."""
        for blob, view in zip(self._carried, source._averages, strict=True):
            self._where.overwrite(blob.data_memory)[: blob.count] = view
        return self._where.number(source.array[-1:])

    def overwritten(self) -> None:
        """Take note that the gradients in the array are new."""
        for blob in self._params:
            self._where.change(blob.diff_memory)
