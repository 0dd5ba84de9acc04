"""BNLL: y = log(1 + exp(x)), the binomial negative log likelihood.

Source: Caffe, ``src/caffe/layers/bnll_layer.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import Blobs, Flags
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["BNLL"]

LARGEST = 50.0  # no exponential of more is taken in the gradient


@register("BNLL")
class BNLL(NeuronLayer):
    """Softplus of every element, stable for large values; may run in place.

    Shapes: bottom any -> top the same.
    """

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = self.activation("bnll", bottom)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self.keep_input(bottom, top)
        xp, x = self.xp, bottom[0].read()
        top[0].write(xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x))))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            xp, x = self.xp, self.kept_input(bottom, top)
            e = xp.exp(xp.minimum(x, LARGEST))
            bottom[0].write_diff(top[0].read_diff() * (e / (e + 1)))
