"""BN of SegNet: normalisation by the batch in both phases, with a scale and a shift.

Source: SegNet (alexgkendall/caffe-segnet), ``src/caffe/layers/bn_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.io.proto import BNParameter
from demitasse.layers.base import Between, Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import conflict
from demitasse.layers.helpers.channels import Channels, through_normalization

__all__ = ["SegNetBN"]

EPS = 1e-9


class SegNetBN(Layer):
    """In mode LEARN, normalise each channel by the batch; then scale and shift it; maybe in place.

    Mode INFERENCE expects the statistics to be part of scale and shift.

    Shapes: bottom (N, C, ...) -> top the same; in mode LEARN, further tops take mean and variance
    of the batch, shaped like the parameters: scale, shift (1, C, 1, 1).

    Raises:
        ConfigError: Further tops in mode INFERENCE.
        ShapeError: The bottom has fewer than two axes, or another number of channels than before.
    """

    bottoms = Exactly(1)
    tops = Between(1, 3)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.bn_param
        self.learns = p.bn_mode == BNParameter.LEARN
        if len(top) > 1 and not self.learns:
            message = "only SegNet's BN in mode LEARN has mean and variance as further tops"
            raise conflict("bn_param.bn_mode", message)
        self.count = Channels.of(bottom[0], "BN").count
        for filler in (p.scale_filler, p.shift_filler):
            self.add_param((1, self.count, 1, 1), filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        self.channels = Channels.of(bottom[0], "BN")
        self.channels.need(self.count, bottom[0], "parameters")
        top[0].reshape_like(bottom[0])
        for blob in top[1:]:
            blob.reshape((1, self.count, 1, 1))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, unit = self.xp, bottom[0].read()
        if self.learns:
            axes = self.channels.axes
            mean = xp.mean(unit, axis=axes, keepdims=True)
            unit = unit - mean
            variance = xp.mean(unit * unit, axis=axes, keepdims=True)
            deviation = xp.sqrt(variance + EPS)
            unit = unit / deviation
            self.saved("deviation", self.channels.spread).write(deviation)
            for blob, value in zip(top[1:], (mean, variance), strict=False):
                blob.write(xp.reshape(value, blob.shape))
        if self.learns or top[0] is bottom[0]:
            self.saved("unit", bottom[0].shape).write(unit)
        top[0].write(unit * self._spread(0) + self._spread(1))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, dy, axes = self.xp, top[0].read_diff(), self.channels.axes
        kept = self.learns or top[0] is bottom[0]
        unit = self.saved("unit", bottom[0].shape).read() if kept else bottom[0].read()
        for index, diff in ((0, dy * unit), (1, dy)):
            if self.param_propagate_down(index):
                blob = self.blobs[index]
                blob.add_diff(xp.reshape(xp.sum(diff, axis=axes), blob.shape))
        if not propagate_down[0]:
            return
        dx = dy * self._spread(0)
        if self.learns:
            deviation = self.saved("deviation", self.channels.spread).read()
            dx = through_normalization(xp, dx, unit, axes) / deviation
        bottom[0].write_diff(dx)

    def _spread(self, index: int) -> Array:
        """Return a parameter, to be broadcast with the bottom."""
        return self.xp.reshape(self.blobs[index].read(), self.channels.spread)
