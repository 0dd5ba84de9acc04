"""The gradients of a net in one array, with room for what else is reduced along with them."""

from __future__ import annotations

import numpy as np

from demitasse.blob import Blob
from demitasse.net import Net

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

    Attributes:
        array: All of it, one-dimensional.
    """

    def __init__(self, net: Net) -> None:
        self._params, self._carried = net.learnable_params, carried_params(net)
        sizes = [blob.count for blob in (*self._params, *self._carried)]
        self.array = np.zeros(sum(sizes) + 1, net.dtype)
        views = np.split(self.array[:-1], np.cumsum(sizes)[:-1]) if sizes else []
        self._gradients, self._averages = views[: len(self._params)], views[len(self._params) :]
        for blob, view in zip(self._params, self._gradients, strict=True):
            blob.diff_memory.set_cpu_data(view)

    def fill(self, loss: float) -> None:
        """Bring everything up to date after a net's passes."""
        for blob, view in zip(self._params, self._gradients, strict=True):
            gradient = blob.diff_memory.cpu_data()
            if gradient.ctypes.data != view.ctypes.data:  # somebody gave the blob another array
                view[...] = gradient[: blob.count]
                blob.diff_memory.set_cpu_data(view)
        for blob, view in zip(self._carried, self._averages, strict=True):
            view[...] = blob.data_memory.cpu_data()[: blob.count]
        self.array[-1] = loss

    def take(self, source: Flat) -> float:
        """Give the net the running averages of ``source``; return its loss."""
        for blob, view in zip(self._carried, source._averages, strict=True):
            blob.data_memory.mutable_cpu_data(discard=True)[: blob.count] = view
        return float(source.array[-1])

    def overwritten(self) -> None:
        """Take note that the gradients in the array are new."""
        for blob in self._params:
            blob.diff_memory.mutable_cpu_data()
