"""ReLU6: y = min(max(x, 0) + negative_slope min(x, 0), 6).

Source: MobileNet-YOLO (eric612), ``src/caffe/layers/relu6_layer.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import Blobs, Flags
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["ReLU6"]

TOP = 6.0


@register("ReLU6")
class ReLU6(NeuronLayer):
    """Rectified linear unit that ends at 6; may run in place.

    Not compared with the original.

    Shapes: bottom any -> top the same.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        self.slope = self.param.relu6_param.negative_slope

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = self.activation("relu6", bottom, self.slope)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        if self.slope < 0:  # otherwise the output tells where the input was
            self.keep_input(bottom, top)
        xp, x = self.xp, bottom[0].read()
        y = xp.maximum(x, 0.0)
        if self.slope:
            y = y + self.slope * xp.minimum(x, 0.0)
        top[0].write(xp.minimum(y, TOP))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            x = self.kept_input(bottom, top) if self.slope < 0 else bottom[0].read()
            factor = self.cast((x > 0) & (x < TOP))
            if self.slope:
                factor = factor + self.slope * self.cast(x <= 0)
            bottom[0].write_diff(top[0].read_diff() * factor)
