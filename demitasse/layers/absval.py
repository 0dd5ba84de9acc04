"""AbsVal: y = |x|.

Source: Caffe, ``src/caffe/layers/absval_layer.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import Blobs, Flags
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["AbsVal"]


@register("AbsVal")
class AbsVal(NeuronLayer):
    """Absolute value of every element; the gradient at 0 is 0.

    Shapes: bottom any -> top the same.

    Raises:
        NetError: It is to run in place, which would lose the signs.
    """

    in_place = False

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = self.activation("abs", bottom)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        top[0].write(self.xp.abs(bottom[0].read()))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            bottom[0].write_diff(top[0].read_diff() * self.xp.sign(bottom[0].read()))
