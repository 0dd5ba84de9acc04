"""ELU: y = x where x > 0, else alpha (exp(x) - 1).

Source: Caffe, ``src/caffe/layers/elu_layer.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import Blobs, Flags
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["ELU"]


@register("ELU")
class ELU(NeuronLayer):
    """Exponential linear unit of every element; may run in place.

    Shapes: bottom any -> top the same.
    """

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.alpha = self.param.elu_param.alpha
        self.op = self.activation("elu", bottom, self.alpha)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        if self.alpha < 0:  # otherwise the output has the sign of the input
            self.keep_input(bottom, top)
        xp, x = self.xp, bottom[0].read()
        below = xp.expm1(xp.minimum(x, 0.0))  # right for small x, too, unlike exp(x) - 1
        top[0].write(xp.maximum(x, 0.0) + self.alpha * below)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            x = self.kept_input(bottom, top) if self.alpha < 0 else bottom[0].read()
            above = self.cast(x > 0)
            slope = above + (1 - above) * (top[0].read() + self.alpha)
            bottom[0].write_diff(top[0].read_diff() * slope)
