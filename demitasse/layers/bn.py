"""BN: batch normalisation with a scale and a shift; two layers of one name.

SegNet's has two parameters. In mode LEARN it normalises by the batch, in both phases; INFERENCE
expects the statistics to be part of scale and shift. The other, of yjxiong's Caffe and PSPNet, has
four: it also keeps averages of mean and variance, for phase TEST or, when frozen, for both.

Source: SegNet (alexgkendall/caffe-segnet) and yjxiong/caffe, ``src/caffe/layers/bn_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.errors import ConfigError, ShapeError
from demitasse.layers.base import Between, Blobs, Exactly, Flags, Layer
from demitasse.layers.registry import register
from demitasse.proto import BNParameter, FillerParameter

__all__ = ["BN"]

SEGNET = ("scale_filler", "shift_filler", "bn_mode")
AVERAGES = ("slope_filler", "bias_filler", "momentum", "eps", "frozen")
SEGNET_EPS = 1e-9


@register("BN")
class BN(Layer):
    """Normalise each channel, then scale and shift it; may run in place.

    Fields of SegNet's message make it SegNet's layer, those of PSPNet's (or none) PSPNet's. In
    phase TEST the gradient treats the statistics as constants. Not compared with the originals.

    Shapes: bottom (N, C, ...) -> top the same. Parameters of SegNet: scale, shift (1, C, 1, 1); in
    mode LEARN, further tops take mean and variance of the batch, shaped like them. Of PSPNet:
    slope, bias, mean, variance (1, C), the last two not trained.

    Raises:
        ConfigError: Fields of both are given, or further tops where there is no batch to look at.
        ShapeError: The bottom has fewer than two axes, or another number of channels than before.
    """

    bottoms = Exactly(1)
    tops = Between(1, 3)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.bn_param
        self.channels = self._channels(bottom)
        self.segnet = _is_segnet(p, stored=len(self.blobs))
        self.frozen, self.momentum = p.frozen, p.momentum
        self.eps = SEGNET_EPS if self.segnet else p.eps
        if self.segnet:
            self.source = "batch" if p.bn_mode == BNParameter.LEARN else "nothing"
        else:
            self.source = "averages" if self.frozen or self.phase == "TEST" else "batch"
        if len(top) > 1 and not (self.segnet and self.source == "batch"):
            message = "only SegNet's BN in mode LEARN has mean and variance as further tops"
            raise ConfigError(message)
        if self.segnet:
            for filler in (p.scale_filler, p.shift_filler):
                self.add_param((1, self.channels, 1, 1), filler)
            return
        variance = FillerParameter(value=float(self.frozen))
        for filler in (p.slope_filler, p.bias_filler, FillerParameter(), variance):
            self.add_param((1, self.channels), filler)
        self._freeze()

    def _freeze(self) -> None:
        """Set the learning rates of the averages, or of all, to 0."""
        while len(self.param.param) < 4:
            self.param.param.add()
        for index in range(0 if self.frozen else 2, 4):
            self.param.param[index].lr_mult = 0
            self.param.param[index].decay_mult = 0

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        channels = self._channels(bottom)
        if channels != self.channels:
            message = (
                f"bottom {bottom[0].name!r} {bottom[0].shape} has {channels} channels, "
                f"but the parameters are those of {self.channels}"
            )
            raise ShapeError(message)
        rest = bottom[0].num_axes - 2
        self.axes = (0, *range(2, rest + 2))
        self.spread = (1, channels, *(1,) * rest)
        top[0].reshape_like(bottom[0])
        for blob in top[1:]:
            blob.reshape((1, channels, 1, 1))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, unit = self.xp, bottom[0].read()
        if self.source != "nothing":
            if self.source == "batch":
                mean = xp.mean(unit, axis=self.axes, keepdims=True)
                unit = unit - mean
                variance = xp.mean(unit * unit, axis=self.axes, keepdims=True)
                self._note(mean, variance, top)
            else:
                unit = unit - self._spread(2)
                variance = self._spread(3)
            deviation = xp.sqrt(variance + self.eps)
            unit = unit / deviation
            self.saved("deviation", self.spread).write(deviation)
        if self.source == "batch" or top[0] is bottom[0]:
            self.saved("unit", bottom[0].shape).write(unit)
        top[0].write(unit * self._spread(0) + self._spread(1))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, dy = self.xp, top[0].read_diff()
        unit = self._unit(bottom, top)
        for index, diff in ((0, dy * unit), (1, dy)):
            if self.param_propagate_down(index) and not self.frozen:
                blob = self.blobs[index]
                blob.add_diff(xp.reshape(xp.sum(diff, axis=self.axes), blob.shape))
        if not propagate_down[0]:
            return
        dx = dy * self._spread(0)
        if self.source == "batch":
            along = xp.mean(dx * unit, axis=self.axes, keepdims=True)
            dx = dx - xp.mean(dx, axis=self.axes, keepdims=True) - along * unit
        if self.source != "nothing":
            dx = dx / self.saved("deviation", self.spread).read()
        bottom[0].write_diff(dx)

    def _unit(self, bottom: Blobs, top: Blobs) -> Array:
        """Return what the last forward scaled."""
        if self.source == "batch" or top[0] is bottom[0]:
            return self.saved("unit", bottom[0].shape).read()
        if self.source == "nothing":
            return bottom[0].read()
        deviation = self.saved("deviation", self.spread).read()
        return (bottom[0].read() - self._spread(2)) / deviation

    def _note(self, mean: Array, variance: Array, top: Blobs) -> None:
        """Give statistics of the batch to the averages, or to further tops."""
        xp = self.xp
        for blob, value in zip(top[1:], (mean, variance), strict=False):
            blob.write(xp.reshape(value, blob.shape))
        if not self.segnet:
            for blob, value in zip(self.blobs[2:], (mean, variance), strict=True):
                new = xp.reshape(value, blob.shape) * (1 - self.momentum)
                blob.write(blob.read() * self.momentum + new)

    def _spread(self, index: int) -> Array:
        """Return a parameter, to be broadcast with the bottom."""
        return self.xp.reshape(self.blobs[index].read(), self.spread)

    def _channels(self, bottom: Blobs) -> int:
        if bottom[0].num_axes < 2:
            message = f"BN needs a bottom (N, C, ...), not {bottom[0].shape}"
            raise ShapeError(message)
        return bottom[0].shape[1]


def _is_segnet(p: BNParameter, stored: int) -> bool:
    """Whether a message is SegNet's; the number of stored parameters decides where it is empty.

    Raises:
        ConfigError: It has fields of both.
    """
    segnet = [name for name in SEGNET if p.HasField(name)]
    averages = [name for name in AVERAGES if p.HasField(name)]
    if segnet and averages:
        message = (
            f"bn_param has {segnet[0]}, a field of SegNet's BN, and {averages[0]}, one of "
            "PSPNet's; they are different layers"
        )
        raise ConfigError(message)
    return bool(segnet) or (not averages and stored == 2)
