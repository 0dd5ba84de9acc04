"""PReLU: y = max(x, 0) + slope min(x, 0), with a learned slope.

Source: Caffe, ``src/caffe/layers/prelu_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.io.proto import FillerParameter
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.helpers.channels import Channels
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register

__all__ = ["PReLU"]


@register("PReLU")
class PReLU(NeuronLayer):
    """Leaky rectified linear unit whose slope is learned; may run in place.

    Shapes: bottom (N, C, ...) -> top the same. Slope (C,), or () with ``channel_shared``.

    Raises:
        ShapeError: The bottom has fewer than two axes, or other channels than the slope.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del top
        p = self.param.prelu_param
        self.shared = p.channel_shared
        self.channels = Channels.of(bottom[0], self.type).count
        filler = p.filler if p.HasField("filler") else FillerParameter(value=0.25)
        self.add_param(() if self.shared else (self.channels,), filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        channels = Channels.of(bottom[0], self.type)
        if not self.shared:
            channels.need(self.channels, bottom[0], "slopes")
        self.spread = () if self.shared else channels.spread
        super().reshape(bottom, top)
        self.op = ops.PReLU(dtype=self.dtype, bottom=bottom[0].shape, shared=self.shared)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self.keep_input(bottom, top)
        xp, x = self.xp, bottom[0].read()
        top[0].write(xp.maximum(x, 0.0) + self._slope() * xp.minimum(x, 0.0))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, x, dy = self.xp, self.kept_input(bottom, top), top[0].read_diff()
        if self.param_propagate_down(0):
            axes = [i for i in range(bottom[0].num_axes) if self.shared or i != 1]
            slope_diff = xp.sum(dy * xp.minimum(x, 0.0), axis=tuple(axes))
            self.blobs[0].add_diff(xp.reshape(slope_diff, self.blobs[0].shape))
        if propagate_down[0]:
            above = self.cast(x > 0)
            bottom[0].write_diff(dy * (above + (1 - above) * self._slope()))

    def _slope(self) -> Array:
        """Return the slope, to be multiplied with a blob."""
        return self.xp.reshape(self.blobs[0].read(), self.spread)
