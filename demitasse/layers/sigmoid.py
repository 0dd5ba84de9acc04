"""Sigmoid: y = 1 / (1 + exp(-x)).

Source: Caffe, ``src/caffe/layers/sigmoid_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Flags, Layer
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["Sigmoid"]


@register("Sigmoid")
class Sigmoid(NeuronLayer):
    """Logistic function of every element; may run in place.

    Shapes: bottom any -> top the same.
    """

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = self.activation("sigmoid", bottom)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        top[0].write(sigmoid(self, bottom[0].read()))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            y = top[0].read()
            bottom[0].write_diff(top[0].read_diff() * y * (1 - y))


def sigmoid(layer: Layer, x: Array) -> Array:
    """Return the logistic function of ``x``, by way of tanh, which cannot overflow."""
    return 0.5 * layer.xp.tanh(0.5 * x) + 0.5
