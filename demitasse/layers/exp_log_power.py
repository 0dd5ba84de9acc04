"""Exp, Log and Power: elementwise functions of shift + scale x."""

import math

from demitasse.backends.arrays import Array
from demitasse.layers.activations import NeuronLayer
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.checks import out_of_range
from demitasse.layers.registry import register_layer


@register_layer("Exp")
class Exp(NeuronLayer):
    """Exponential of a linear function of every element; may run in place.

    y = base^(shift + scale x).
    ``base`` -1, the default, means e.

    Source: Caffe, ``src/caffe/layers/exp_layer.cpp``.
    Shapes: bottom any -> top the same.

    Raises:
        ConfigError: ``base`` is not positive.
    """

    function = "exp"

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.exp_param
        log_base = log_of_base(p.base, "exp_param.base")
        self.inner = log_base * p.scale
        try:
            self.outer = math.exp(log_base * p.shift) if p.shift else 1.0
        except OverflowError:
            self.outer = math.inf
        self.constants = self.inner, self.outer

    def value(self, x: Array) -> Array:
        y = self.xp.exp(x if self.inner == 1 else x * self.inner)
        return y if self.outer == 1 else y * self.outer

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            bottom[0].write_diff(top[0].read_diff() * top[0].read() * self.inner)


def log_of_base(base: float, field_name: str) -> float:
    """Return the natural logarithm of a positive base; -1 means e."""
    if base == -1:
        return 1.0
    if not 0 < base < math.inf:
        raise out_of_range(field_name, base, "a positive number, or -1 for e")
    return math.log(base)


def linear(x: Array, scale: float, shift: float) -> Array:
    """Return shift + scale x."""
    x = x if scale == 1 else x * scale
    return x if shift == 0 else x + shift


@register_layer("Log")
class Log(NeuronLayer):
    """Logarithm of a linear function of every element; may run in place.

    y = log(shift + scale x) to a base.
    ``base`` -1, the default, means e.

    Source: Caffe, ``src/caffe/layers/log_layer.cpp``.
    Shapes: bottom any -> top the same.

    Raises:
        ConfigError: ``base`` is not positive, or 1.
    """

    function = "log"
    needs_input = True

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.log_param
        log_base = log_of_base(p.base, "log_param.base")
        if log_base == 0:
            raise out_of_range("log_param.base", p.base, "another number than 1")
        self.scale, self.shift, self.outer = self.constants = p.scale, p.shift, 1 / log_base

    def value(self, x: Array) -> Array:
        y = self.xp.log(linear(x, self.scale, self.shift))
        return y if self.outer == 1 else y * self.outer

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            inner = linear(self.saved_input(bottom, top), self.scale, self.shift)
            bottom[0].write_diff(top[0].read_diff() * (self.scale * self.outer) / inner)


@register_layer("Power")
class Power(NeuronLayer):
    """A power of a linear function of every element; may run in place.

    y = (shift + scale x)^power.
    With ``power`` 0 the top is 1 for every input. The gradient is exact at 0, too:
    power * scale * (shift + scale x)^(power - 1).

    Source: Caffe, ``src/caffe/layers/power_layer.cpp``.
    Shapes: bottom any -> top the same.
    """

    function = "power"

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.power_param
        self.power, self.scale, self.shift = self.constants = p.power, p.scale, p.shift
        self.slope = p.power * p.scale  # of the outer function; 0: the top is constant
        self.needs_input = self.slope != 0 and self.power != 1

    def value(self, x: Array) -> Array:
        if self.slope == 0:
            value = self._raised(self.full((), self.shift), self.power)
            return self.xp.broadcast_to(value, x.shape)
        return self._raised(linear(x, self.scale, self.shift), self.power)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not propagate_down[0]:
            return
        slope: Array | float = self.slope
        if self.needs_input:
            inner = linear(self.saved_input(bottom, top), self.scale, self.shift)
            slope = slope * self._raised(inner, self.power - 1)
        bottom[0].write_diff(top[0].read_diff() * slope)

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
