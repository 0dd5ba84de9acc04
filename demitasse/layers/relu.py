"""ReLU: y = max(x, 0) + negative_slope * min(x, 0).

Source: Caffe, ``src/caffe/layers/relu_layer.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import Blobs, Flags
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["ReLU"]


@register("ReLU")
class ReLU(NeuronLayer):
    """Rectified linear unit of every element, leaky with ``negative_slope``; may run in place.

    Shapes: bottom any -> top the same.
    """

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.slope = self.param.relu_param.negative_slope
        self.op = self.activation("relu", bottom, self.slope)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        if self.slope < 0:  # otherwise the output has the sign of the input
            self.keep_input(bottom, top)
        xp, x = self.xp, bottom[0].read()
        top[0].write(xp.maximum(x, 0.0) + self.slope * xp.minimum(x, 0.0))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            x = self.kept_input(bottom, top) if self.slope < 0 else bottom[0].read()
            factor = self.cast(x > 0)  # a product is several times as fast as a choice
            if self.slope:
                factor = factor + self.slope * self.cast(x <= 0)
            bottom[0].write_diff(top[0].read_diff() * factor)
