"""GELU: y = x Phi(x), where Phi is the distribution function of a standard normal variable.

Source: Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv:1606.08415; the exact form, by
erf, as ``torch.nn.GELU`` computes it. Caffe does not have it.
"""

from __future__ import annotations

from demitasse.backends import normal
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["GELU"]


@register("GELU")
class GELU(NeuronLayer):
    """Gaussian error linear unit of every element; may run in place.

    On ``cpu``, oneDNN's code for float32 is right to six digits after the point, and gives NaN for
    infinite inputs; the layer's own code gives their limits.

    Shapes: bottom any -> top the same.
    """

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = self.activation("gelu", bottom)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self.keep_input(bottom, top)
        top[0].write(normal.gelu(self.xp, bottom[0].read()))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            slope = normal.gelu_slope(self.xp, self.kept_input(bottom, top))
            bottom[0].write_diff(top[0].read_diff() * slope)
