"""Power: y = (shift + scale x)^power.

Source: Caffe, ``src/caffe/layers/power_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["Power"]


@register("Power")
class Power(NeuronLayer):
    """A power of a linear function of every element; may run in place.

    Where ``power`` is 0 the top is 1 whatever the input. The gradient is
    power * scale * (shift + scale x)^(power - 1), so that it is right at 0, too.

    Shapes: bottom any -> top the same.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        p = self.param.power_param
        self.power, self.scale, self.shift = p.power, p.scale, p.shift
        self.slope = p.power * p.scale  # of the outer function; 0: the input does not matter
        self.needs_input = self.slope != 0 and self.power != 1

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = self.activation("power", bottom, self.power, self.scale, self.shift)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        if self.needs_input:
            self.keep_input(bottom, top)
        if self.slope == 0:
            value = self._raised(self.full((), self.shift), self.power)
            top[0].write(self.xp.broadcast_to(value, top[0].shape))
        else:
            top[0].write(self._raised(self._inner(bottom[0].read()), self.power))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not propagate_down[0]:
            return
        slope: Array | float = self.slope
        if self.needs_input:
            slope = slope * self._raised(self._inner(self.kept_input(bottom, top)), self.power - 1)
        bottom[0].write_diff(top[0].read_diff() * slope)

    def _inner(self, x: Array) -> Array:
        x = x if self.scale == 1 else x * self.scale
        return x if self.shift == 0 else x + self.shift

    @staticmethod
    def _raised(x: Array, power: float) -> Array:
        match power:
            case 0:
                return x**0.0  # 1, also of NaN
            case 1:
                return x
            case 2:
                return x * x
            case _:
                return x**power
