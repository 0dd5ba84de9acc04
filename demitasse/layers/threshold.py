"""Threshold: y = 1 where x > threshold, else 0.

Source: Caffe, ``src/caffe/layers/threshold_layer.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import Blobs
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["Threshold"]


@register("Threshold")
class Threshold(NeuronLayer):
    """Return 1 where an element is above ``threshold``, else 0; no gradient; may run in place.

    Shapes: bottom any -> top the same.
    """

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.threshold = self.param.threshold_param.threshold
        self.op = self.activation("threshold", bottom, self.threshold)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        top[0].write(self.cast(bottom[0].read() > self.threshold))
