"""Log: y = log(shift + scale x) to a base.

Source: Caffe, ``src/caffe/layers/log_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.checks import out_of_range
from demitasse.layers.exp import log_of_base
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["Log"]


@register("Log")
class Log(NeuronLayer):
    """Logarithm of a linear function of every element; may run in place.

    ``base`` -1, the default, stands for e.

    Shapes: bottom any -> top the same.

    Raises:
        ConfigError: ``base`` is not positive, or 1.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        p = self.param.log_param
        log_base = log_of_base(p.base, "log_param.base")
        if log_base == 0:
            raise out_of_range("log_param.base", p.base, "another number than 1")
        self.scale, self.shift, self.outer = p.scale, p.shift, 1 / log_base

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = self.activation("log", bottom, self.scale, self.shift, self.outer)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self.keep_input(bottom, top)
        y = self.xp.log(self._inner(bottom[0].read()))
        top[0].write(y if self.outer == 1 else y * self.outer)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            inner = self._inner(self.kept_input(bottom, top))
            bottom[0].write_diff(top[0].read_diff() * (self.scale * self.outer) / inner)

    def _inner(self, x: Array) -> Array:
        x = x if self.scale == 1 else x * self.scale
        return x if self.shift == 0 else x + self.shift
