"""Gradients of one solver of several, each with a GPU, whose passes somebody else runs."""

from __future__ import annotations

from demitasse.backends.collective import DeviceCollective
from demitasse.net import Net
from demitasse.training.distributed.flat import Flat, broadcast
from demitasse.training.distributed.where import OnDevice

__all__ = ["Gradients"]


class Gradients:
    """Replaces a net's gradients by their mean over a group, all at once or layer by layer.

    Running averages become the mean, too. All members call the same methods in the same order.

    Args:
        net: The net.
        group: Its device and those of the others.
    """

    def __init__(self, net: Net, group: DeviceCollective) -> None:
        self._net, self._group = net, group
        self._where = OnDevice(net.device)
        self._flat = Flat(net, self._where)
        self._count = len(net.learnable_params)
        self._of_layer = [_params_of(net, layer) for layer in range(len(net.layers))]
        self._done: set[int] = set()

    def broadcast(self) -> None:
        """Give all members the parameters that the first has."""
        with self._where.here():
            broadcast(self._net, self._group, self._where)

    def start_layer(self, layer: int) -> None:
        """Begin with the gradients of a layer's own parameters, beside the rest of backward.

        Those that it shares with layers before it follow with these.
        """
        params = self._of_layer[layer]
        if params:
            with self._where.here(), self._group.aside():
                self._flat.gather(params)
                self._mean(params.start, params.stop)
                self._flat.overwritten(params)
            self._done.update(params)

    def finish(self) -> None:
        """Do what is left once all gradients are there."""
        with self._where.here():
            self._flat.fill()
            first = self._count if self._done else 0
            for index in range(first):
                if index not in self._done:
                    self._mean(index, index + 1)
            rest = self._flat.rest(first)
            self._group.add(rest)
            rest /= self._group.size
            self._flat.overwritten()
            self._flat.take(self._flat)
        self._done.clear()

    def _mean(self, first: int, end: int) -> None:
        """Queue the mean of the gradients of some parameters."""
        part = self._flat.part(first, end)
        self._group.start_add(part)
        part /= self._group.size


def _params_of(net: Net, layer: int) -> range:
    """Return the learnable parameters that are a layer's own, which stand side by side."""
    own = {id(blob) for blob in net.layers[layer].blobs}
    found = [index for index, blob in enumerate(net.learnable_params) if id(blob) in own]
    return range(found[0], found[-1] + 1) if found else range(0)
