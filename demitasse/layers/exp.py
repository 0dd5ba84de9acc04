"""Exp: y = base^(shift + scale x).

Source: Caffe, ``src/caffe/layers/exp_layer.cpp``.
"""

from __future__ import annotations

import math

from demitasse.layers.base import Blobs, Flags
from demitasse.layers.checks import out_of_range
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["Exp", "log_of_base"]


@register("Exp")
class Exp(NeuronLayer):
    """Exponential of a linear function of every element; may run in place.

    ``base`` -1, the default, stands for e.

    Shapes: bottom any -> top the same.

    Raises:
        ConfigError: ``base`` is not positive.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        p = self.param.exp_param
        log_base = log_of_base(p.base, "exp_param.base")
        self.inner = log_base * p.scale
        self.outer = _exp(log_base * p.shift) if p.shift else 1.0

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = self.activation("exp", bottom, self.inner, self.outer)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        x = bottom[0].read()
        y = self.xp.exp(x if self.inner == 1 else x * self.inner)
        top[0].write(y if self.outer == 1 else y * self.outer)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            bottom[0].write_diff(top[0].read_diff() * top[0].read() * self.inner)


def log_of_base(base: float, field_name: str) -> float:
    """Return the natural logarithm of a base; -1 stands for e.

    Raises:
        ConfigError: The base is not a positive finite number.
    """
    if base == -1:
        return 1.0
    if not 0 < base < math.inf:
        raise out_of_range(field_name, base, "a positive number, or -1 for e")
    return math.log(base)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
