"""MVN: subtract the mean of each row, and divide by its deviation; nothing is learned."""

import math

from demitasse.backends import ops
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.numerics import normalization_backward
from demitasse.layers.registry import register_layer


@register_layer("MVN")
class MVN(Layer):
    """Normalise each channel of each item or, with ``across_channels``, each item.

    y = (x - mean) / (sqrt(variance) + eps), or x - mean without ``normalize_variance``.

    Source: Caffe, ``src/caffe/layers/mvn_layer.cpp``.
    Shapes: bottom of at most 4 axes -> top (N, C, H, W), absent axes being 1.

    Raises:
        ShapeError: The bottom has more than 4 axes.
    """

    bottoms = tops = Exactly(1)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        p, x = self.param.mvn_param, bottom[0]
        shape = (x.num, x.channels, x.height, x.width)
        top[0].reshape(shape)
        lead = 1 if p.across_channels else 2  # axes of the rows
        self.view = (math.prod(shape[:lead]), math.prod(shape[lead:]))
        self.divides, self.eps = p.normalize_variance, p.eps
        self.op = ops.MVN(self.dtype, shape, p.across_channels, self.divides, self.eps)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp = self.xp
        x = xp.reshape(bottom[0].read(), self.view)
        y = x - xp.mean(x, axis=1, keepdims=True)
        if self.divides:
            variance = xp.mean(y * y, axis=1, keepdims=True)
            deviation = xp.sqrt(variance) + self.eps
            self.saved("deviation", (self.view[0], 1)).write(deviation)
            y = y / deviation
        top[0].write(xp.reshape(y, top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not propagate_down[0]:
            return
        xp = self.xp
        dy = xp.reshape(top[0].read_diff(), self.view)
        if self.divides:
            y = xp.reshape(top[0].read(), self.view)
            deviation = self.saved("deviation", (self.view[0], 1)).read()
            dx = normalization_backward(xp, dy, y, (1,)) / deviation
        else:
            dx = dy - xp.mean(dy, axis=1, keepdims=True)
        bottom[0].write_diff(xp.reshape(dx, bottom[0].shape))
