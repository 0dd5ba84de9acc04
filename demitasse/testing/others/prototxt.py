"""Another net of Caffe's, run beside the first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse.net import Net
from demitasse.testing.comparison import run_net
from demitasse.testing.others.kinds import kinds_of_layers
from demitasse.testing.others.model import Parameter, Value

__all__ = ["OtherNet"]


class OtherNet:
    """A net, as another model.

    Args:
        net: The net, with its weights.
        name: What it is called in tables.
    """

    ordered = True

    def __init__(self, net: Net, name: str) -> None:
        self.net, self.name = net, name
        self.outputs = tuple(net.outputs)

    def inputs(self) -> Mapping[str, tuple[int | None, ...]]:
        """Return the shapes of the net's inputs."""
        return {name: self.net.blobs[name].shape for name in self.net.inputs}

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[Value]:
        """Return the tops of all layers."""
        code: dict[str, dict[str, str]] = {}
        device = self.net.device
        found = run_net(self.net, device, arrays, backward=False, look=True, code=code)
        tops = {layer: sum(one.layer == layer for one in found) for layer in self.net.layer_names}
        kinds = kinds_of_layers(self.net)
        return [
            # a layer of one top lends it its name, which tells blobs written in place apart
            Value((*([one.layer] if tops[one.layer] == 1 else []), *one.wrote), one.array,
                  f"{one.type} on {device}", kinds[one.layer])
            for one in found
        ]  # fmt: skip

    def parameters(self) -> list[Parameter]:
        """Return none: Caffe's parameters are compared by layer and number."""
        return []
