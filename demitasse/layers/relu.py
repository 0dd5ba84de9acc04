"""ReLU: y = max(x, 0) + negative_slope * min(x, 0).

Source: Caffe, ``src/caffe/layers/relu_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.layers.base import Blobs, Flags, register
from demitasse.layers.neuron import NeuronLayer

__all__ = ["ReLU"]


@register("ReLU")
class ReLU(NeuronLayer):
    """Rectified linear unit of every element, leaky with ``negative_slope``; may run in place.

    Shapes: bottom any -> top the same.
    """

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.slope = self.param.relu_param.negative_slope
        self.op = ops.Activation(
            dtype=self.dtype, function="relu", count=bottom[0].count, parameters=(self.slope,)
        )

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, x = self.xp, bottom[0].read()
        y = xp.maximum(x, self.zeros(()))
        if self.slope:
            y = y + self.slope * xp.minimum(x, self.zeros(()))
        top[0].write(y)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            xp, dy = self.xp, top[0].read_diff()
            # in place, the bottom holds y, which is positive exactly where x was
            positive = bottom[0].read() > 0
            bottom[0].write_diff(xp.where(positive, dy, self.slope * dy))
