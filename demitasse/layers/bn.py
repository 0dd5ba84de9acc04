"""BN: batch normalization with a scale and a shift; two layers share the name.

SegNet's BN has two parameters. In mode LEARN it normalizes by the batch, in both phases; mode
INFERENCE expects the statistics to be folded into scale and shift. The BN of yjxiong's Caffe and
PSPNet has four parameters: it also keeps averages of mean and variance, for phase TEST or, when
frozen, for both phases.

Source: SegNet (alexgkendall/caffe-segnet) and yjxiong/caffe, ``src/caffe/layers/bn_layer.cpp``.
"""

import math

from demitasse.backends import ops
from demitasse.io.proto import BNParameter, FillerParameter, LayerParameter
from demitasse.layers.axes import Channels
from demitasse.layers.base import Between, Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import conflict
from demitasse.layers.context import LayerContext
from demitasse.layers.numerics import normalization_backward
from demitasse.layers.registry import register_layer

EPS = 1e-9

SLOPE_AND_BIAS, MEAN_AND_VARIANCE = (0, 1), (2, 3)
"""Places of the parameters of yjxiong's BN, of which SegNet's has the first two."""


class SegNetBN(Layer):
    """In mode LEARN, normalize each channel by the batch; then scale and shift it.

    Mode INFERENCE expects the statistics to be part of scale and shift. May run in place.

    Shapes: bottom (N, C, ...) -> top the same; in mode LEARN, further tops take mean and variance
    of the batch, shaped like the parameters: scale, shift (1, C, 1, 1).

    Raises:
        ConfigError: Further tops in mode INFERENCE.
        ShapeError: The bottom has fewer than two axes, or another number of channels than before.
    """

    traceable = True
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
        n, c, *spatial = shape = bottom[0].shape
        self.op = None
        if not self.learns:
            self.op = ops.Scale(self.dtype, n, c, math.prod(spatial), True)
        elif len(top) == 1:
            rule = EPS, 0.0, False, (), SLOPE_AND_BIAS
            self.op = ops.AffineBatchNorm(self.dtype, shape, *rule)

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
        scale, shift = (self.channels.view(self, blob) for blob in self.blobs[:2])
        top[0].write(unit * scale + shift)

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
        dx = dy * self.channels.view(self, self.blobs[0])
        if self.learns:
            deviation = self.saved("deviation", self.channels.spread).read()
            dx = normalization_backward(xp, dx, unit, axes) / deviation
        bottom[0].write_diff(dx)


SEGNET = ("scale_filler", "shift_filler", "bn_mode")
AVERAGES = ("slope_filler", "bias_filler", "momentum", "eps", "frozen")


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

    traceable = True
    bottoms = Exactly(1)
    tops = Between(1, 3)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.bn_param
        if len(top) > 1:
            message = "only SegNet's BN in mode LEARN has mean and variance as further tops"
            raise conflict("bn_param.bn_mode", message)
        self.frozen, self.momentum, self.eps = p.frozen, p.momentum, p.eps
        self.by_batch = not self.frozen and self.phase == "TRAIN"
        self.count = Channels.of(bottom[0], "BN").count
        variance = FillerParameter(value=float(self.frozen))
        for filler in (p.slope_filler, p.bias_filler, FillerParameter(), variance):
            self.add_param((1, self.count), filler)
        while len(self.param.param) < 4:
            self.param.param.add()
        for rates in self.param.param[0 if self.frozen else 2 : 4]:  # averages do not learn
            rates.lr_mult = rates.decay_mult = 0
        if self.frozen:
            for place in SLOPE_AND_BIAS:
                self.set_param_propagate_down(place, False)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        self.channels = Channels.of(bottom[0], "BN")
        self.channels.need(self.count, bottom[0], "parameters")
        top[0].reshape_like(bottom[0])
        rule = self.eps, self.momentum, not self.by_batch, MEAN_AND_VARIANCE, SLOPE_AND_BIAS
        self.op = ops.AffineBatchNorm(self.dtype, bottom[0].shape, *rule)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, x = self.xp, bottom[0].read()
        if self.by_batch:
            mean = xp.mean(x, axis=self.channels.axes, keepdims=True)
            centred = x - mean
            variance = xp.mean(centred * centred, axis=self.channels.axes, keepdims=True)
            for blob, value in zip(self.blobs[2:], (mean, variance), strict=True):
                new = xp.reshape(value, blob.shape) * (1 - self.momentum)
                blob.write(blob.read() * self.momentum + new)
        else:
            centred = x - self.channels.view(self, self.blobs[2])
            variance = self.channels.view(self, self.blobs[3])
        deviation = xp.sqrt(variance + self.eps)
        unit = centred / deviation
        self.saved("deviation", self.channels.spread).write(deviation)
        if self.by_batch or top[0] is bottom[0]:
            self.saved("unit", bottom[0].shape).write(unit)
        scale, shift = (self.channels.view(self, blob) for blob in self.blobs[:2])
        top[0].write(unit * scale + shift)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, dy = self.xp, top[0].read_diff()
        deviation = self.saved("deviation", self.channels.spread).read()
        if self.by_batch or top[0] is bottom[0]:
            unit = self.saved("unit", bottom[0].shape).read()
        else:
            unit = (bottom[0].read() - self.channels.view(self, self.blobs[2])) / deviation
        for index, diff in ((0, dy * unit), (1, dy)):
            if self.param_propagate_down(index):
                blob = self.blobs[index]
                blob.add_diff(xp.reshape(xp.sum(diff, axis=self.channels.axes), blob.shape))
        if not propagate_down[0]:
            return
        dx = dy * self.channels.view(self, self.blobs[0])
        if self.by_batch:
            dx = normalization_backward(xp, dx, unit, self.channels.axes)
        bottom[0].write_diff(dx / deviation)

    def state_blobs(self) -> Blobs:
        return self.blobs[2:] if self.by_batch else ()

    def all_state_blobs(self) -> Blobs:
        return self.blobs[2:]

    @property
    def has_state(self) -> bool:
        return self.by_batch


@register_layer("BN")
def create_bn(param: LayerParameter, phase: str, context: LayerContext) -> Layer:
    """Return the layer of SegNet or of PSPNet, by the fields of the message.

    An empty message with two stored parameters is SegNet's.
    """
    p = param.bn_param
    segnet = [name for name in SEGNET if p.HasField(name)]
    averages = [name for name in AVERAGES if p.HasField(name)]
    if segnet and averages:
        message = (
            f"bn_param has {segnet[0]}, a field of SegNet's BN, and {averages[0]}, a field of "
            "PSPNet's; remove one of them"
        )
        raise conflict(f"bn_param.{segnet[0]}", message)
    is_segnet = bool(segnet) or (not averages and len(param.blobs) == 2)
    return (SegNetBN if is_segnet else BN)(param, phase, context)
