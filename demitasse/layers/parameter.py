"""Parameter: a learned blob of its own, as a top.

Source: Caffe, ``src/caffe/layers/parameter_layer.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.registry import register

__all__ = ["Parameter"]


@register("Parameter")
class Parameter(Layer):
    """Hand out a parameter that starts as zeros; the data is shared, not copied.

    The top's gradient is added to the parameter's, so that several passes add up. (In Caffe the two
    share their memory, so only the last pass counts.)

    Shapes: no bottom -> top and parameter of ``shape``.
    """

    bottoms = Exactly(0)
    tops = Exactly(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom
        self.add_param(tuple(self.param.parameter_param.shape.dim))
        top[0].reshape(self.blobs[0].shape)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Nothing: the shape is given."""

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        top[0].share_data(self.blobs[0])

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if self.param_propagate_down(0):
            self.blobs[0].add_diff(top[0].read_diff())
