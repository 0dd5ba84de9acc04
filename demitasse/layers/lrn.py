"""LRN: divide by the energy of the neighbourhood.

ACROSS_CHANNELS: y = x (k + alpha/n sum x^2)^-beta, over n neighbouring channels.
WITHIN_CHANNEL: y = x (1 + alpha/n^2 sum x^2)^-beta, over n by n neighbouring pixels.

Source: Caffe, ``src/caffe/layers/lrn_layer.cpp``.
"""

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.io.proto import LRNParameter
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import out_of_range, wrong_shapes
from demitasse.layers.registry import register_layer


@register_layer("LRN")
class LRN(Layer):
    """Local response normalisation; beyond the edges there are zeros.

    Shapes: bottom (N, C, H, W) -> top the same.

    Raises:
        ConfigError: ``local_size`` is even.
        ShapeError: The bottom does not have 4 axes.
        NetError: A gradient is wanted in place.
    """

    bottoms = tops = Exactly(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.lrn_param
        self.size, self.alpha, self.beta = p.local_size, p.alpha, p.beta
        if self.size % 2 != 1:
            raise out_of_range("lrn_param.local_size", self.size, "an odd number")
        self.across = p.norm_region == LRNParameter.ACROSS_CHANNELS
        self.k = p.k if self.across else 1.0
        self.sides = (1,) if self.across else (2, 3)
        self.rate = self.alpha / self.size ** len(self.sides)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        if bottom[0].num_axes != 4:
            raise wrong_shapes("LRN", "(N, C, H, W)", bottom[0])
        top[0].reshape_like(bottom[0])
        rule = bottom[0].shape, self.size, self.alpha, self.beta, self.k
        self.op = ops.LRN(self.dtype, "ACROSS_CHANNELS" if self.across else "WITHIN_CHANNEL", *rule)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        x = bottom[0].read()
        scale = self.k + self.rate * self._neighbours(x * x)
        self.saved("scale", bottom[0].shape).write(scale)
        top[0].write(x * scale**-self.beta)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not propagate_down[0]:
            return
        self.refuse_overwritten(bottom, top, propagate_down)
        x, y, dy = bottom[0].read(), top[0].read(), top[0].read_diff()
        scale = self.saved("scale", bottom[0].shape).read()
        shared = self._neighbours(dy * y / scale)
        dx = dy * scale**-self.beta - (2 * self.rate * self.beta) * x * shared
        bottom[0].write_diff(dx)

    def _neighbours(self, x: Array) -> Array:
        """Return the sum over each element's neighbourhood. Shapes: (N, C, H, W), both."""
        for axis in self.sides:
            count = x.shape[axis]
            reach = min(self.size // 2, max(count - 1, 0))  # farther neighbours are zeros
            index = [slice(None)] * 4
            index[axis] = slice(reach, reach + count)
            shape = list(x.shape)
            shape[axis] += 2 * reach
            wide = self.device.backend.set_at(self.zeros(tuple(shape)), tuple(index), x)
            total = self.zeros(x.shape)
            for first in range(2 * reach + 1):
                index[axis] = slice(first, first + count)
                total = total + wide[tuple(index)]
            x = total
        return x
