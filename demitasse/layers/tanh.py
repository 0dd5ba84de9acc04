"""TanH: y = tanh(x).

Source: Caffe, ``src/caffe/layers/tanh_layer.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import Blobs, Flags
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["TanH"]


@register("TanH")
class TanH(NeuronLayer):
    """Hyperbolic tangent of every element; may run in place.

    Shapes: bottom any -> top the same.
    """

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = self.activation("tanh", bottom)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        top[0].write(self.xp.tanh(bottom[0].read()))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            y = top[0].read()
            bottom[0].write_diff(top[0].read_diff() * (1 - y * y))
