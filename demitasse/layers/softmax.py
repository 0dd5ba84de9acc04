"""Softmax: y_i = exp(x_i) / sum_j exp(x_j), along one axis."""

from demitasse.backends import ops
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.numerics import softmax
from demitasse.layers.registry import register_layer


@register_layer("Softmax")
class Softmax(Layer):
    """Turn scores into probabilities along ``axis``; may run in place.

    Source: Caffe, ``src/caffe/layers/softmax_layer.cpp``.
    Shapes: bottom any -> top the same.

    Raises:
        ShapeError: The bottom has no such axis.
    """

    bottoms = tops = Exactly(1)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        self.axis = bottom[0].canonical_axis(self.param.softmax_param.axis)
        top[0].reshape_like(bottom[0])
        self.op = ops.Softmax(dtype=self.dtype, bottom=bottom[0].shape, axis=self.axis)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        top[0].write(softmax(self.xp, bottom[0].read(), self.axis))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            y, dy = top[0].read(), top[0].read_diff()
            along = self.xp.sum(dy * y, axis=self.axis, keepdims=True)
            bottom[0].write_diff((dy - along) * y)
