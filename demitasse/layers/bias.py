"""Bias: y = x + b, where b spans some axes of x and repeats over the others.

Source: Caffe, ``src/caffe/layers/bias_layer.cpp``.
"""

from __future__ import annotations

from demitasse.blob import Blob
from demitasse.layers.base import Between, Blobs, Exactly, Flags, Layer
from demitasse.layers.operand import learned_shape, place
from demitasse.layers.registry import register

__all__ = ["Bias"]


@register("Bias")
class Bias(Layer):
    """Add a learned bias, or a second bottom; may run in place.

    Shapes: bottoms x (*outer, *dims, *inner)[, b dims] -> top as x; ``dims`` begin at ``axis``.
    Parameter b dims, unless it is a bottom.

    Raises:
        ConfigError: ``num_axes`` is below -1.
        ShapeError: The bias does not fit the first bottom.
    """

    bottoms = Between(1, 2)
    tops = Exactly(1)
    repeats = True

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del top
        p = self.param.bias_param
        self.axis = p.axis
        if len(bottom) == 1:
            shape = learned_shape(bottom[0], p.axis, p.num_axes, "bias_param")
            self.add_param(shape, p.filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        self.view = place(bottom[0], self._bias(bottom), self.axis)
        top[0].reshape_like(bottom[0])

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, bias = self.xp, self._bias(bottom)
        x = xp.reshape(bottom[0].read(), self.view)
        y = x + xp.reshape(bias.read(), (1, bias.count, 1))
        top[0].write(xp.reshape(y, top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, learned = self.xp, len(bottom) == 1
        dy = top[0].read_diff()
        if self.param_propagate_down(0) if learned else propagate_down[1]:
            bias = self._bias(bottom)
            total = xp.sum(xp.reshape(dy, self.view), axis=(0, 2))
            db = xp.reshape(total, bias.shape)
            if learned:
                bias.add_diff(db)
            else:
                bias.write_diff(db)
        if propagate_down[0] and bottom[0] is not top[0]:
            bottom[0].write_diff(dy)

    def _bias(self, bottom: Blobs) -> Blob:
        return bottom[1] if len(bottom) > 1 else self.blobs[0]
