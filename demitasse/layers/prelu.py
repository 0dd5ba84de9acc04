"""PReLU: y = max(x, 0) + slope min(x, 0), with a learned slope.

Source: Caffe, ``src/caffe/layers/prelu_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.errors import ShapeError
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.neuron import NeuronLayer
from demitasse.layers.registry import register
from demitasse.proto import FillerParameter

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
        self.channels = _channels(bottom)
        filler = p.filler if p.HasField("filler") else FillerParameter(value=0.25)
        self.add_param(() if self.shared else (self.channels,), filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        channels = _channels(bottom)
        if channels != self.channels and not self.shared:
            message = (
                f"bottom {bottom[0].shape} has {channels} channels, "
                f"the slope is for {self.channels}"
            )
            raise ShapeError(message)
        super().reshape(bottom, top)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self.keep_input(bottom, top)
        xp, x = self.xp, bottom[0].read()
        top[0].write(xp.maximum(x, 0.0) + self._slope(bottom) * xp.minimum(x, 0.0))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, x, dy = self.xp, self.kept_input(bottom, top), top[0].read_diff()
        if self.param_propagate_down(0):
            axes = [i for i in range(bottom[0].num_axes) if self.shared or i != 1]
            slope_diff = xp.sum(dy * xp.minimum(x, 0.0), axis=tuple(axes))
            self.blobs[0].add_diff(xp.reshape(slope_diff, self.blobs[0].shape))
        if propagate_down[0]:
            above = self.cast(x > 0)
            bottom[0].write_diff(dy * (above + (1 - above) * self._slope(bottom)))

    def _slope(self, bottom: Blobs) -> Array:
        """The slope, to be multiplied with a blob. Shape: () or (C, 1, ...)."""
        slope = self.blobs[0].read()
        if self.shared:
            return slope
        return self.xp.reshape(slope, (self.channels, *[1] * (bottom[0].num_axes - 2)))


def _channels(bottom: Blobs) -> int:
    if bottom[0].num_axes < 2:
        message = f"PReLU needs a bottom of at least two axes (N, C, ...), not {bottom[0].shape}"
        raise ShapeError(message)
    return bottom[0].shape[1]
