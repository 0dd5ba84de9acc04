"""Swish: y = x sigmoid(beta x).

Source: Caffe, ``src/caffe/layers/swish_layer.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import Blobs, Flags
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register
from demitasse.layers.sigmoid import sigmoid

__all__ = ["Swish"]


@register("Swish")
class Swish(NeuronLayer):
    """Self-gated unit of every element; may run in place.

    Shapes: bottom any -> top the same.
    """

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.beta = self.param.swish_param.beta
        self.op = self.activation("swish", bottom, self.beta)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        x = bottom[0].read()
        gate = sigmoid(self, x * self.beta)
        self.saved("gate", x.shape).write(gate)
        top[0].write(x * gate)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            gate = self.saved("gate", top[0].shape).read()
            by = self.beta * top[0].read()
            bottom[0].write_diff(top[0].read_diff() * (by + gate * (1 - by)))
