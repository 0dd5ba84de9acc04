"""Clip: y = max(min, min(x, max)).

Source: Caffe, ``src/caffe/layers/clip_layer.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import Blobs, Flags
from demitasse.layers.checks import missing
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["Clip"]


@register("Clip")
class Clip(NeuronLayer):
    """Limit every element to [min, max]; the gradient passes there, ends included.

    May run in place.

    Shapes: bottom any -> top the same.

    Raises:
        ConfigError: ``clip_param`` lacks ``min`` or ``max``.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        p = self.param.clip_param
        if not (p.HasField("min") and p.HasField("max")):
            field = "max" if p.HasField("min") else "min"
            raise missing(f"clip_param.{field}", "Clip needs both min and max")
        self.min, self.max = p.min, p.max

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = self.activation("clip", bottom, self.min, self.max)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self.keep_input(bottom, top)
        xp = self.xp
        top[0].write(xp.maximum(xp.minimum(bottom[0].read(), self.max), self.min))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            x = self.kept_input(bottom, top)
            inside = self.cast((x >= self.min) & (x <= self.max))
            bottom[0].write_diff(top[0].read_diff() * inside)
