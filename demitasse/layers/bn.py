"""BN: batch normalization with a scale and a shift; two layers share the name.

SegNet's BN has two parameters. In mode LEARN it normalizes by the batch, in both phases; mode
INFERENCE expects the statistics to be folded into scale and shift. The BN of yjxiong's Caffe and
PSPNet has four parameters: it also keeps averages of mean and variance, for phase TEST or, when
frozen, for both phases.

Source: SegNet (alexgkendall/caffe-segnet) and yjxiong/caffe, ``src/caffe/layers/bn_layer.cpp``.
"""

import math

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.io.proto import BNParameter, FillerParameter, LayerParameter
from demitasse.layers.base import Between, Blobs, Layer
from demitasse.layers.batch_norm import ChannelNorm
from demitasse.layers.checks import conflict
from demitasse.layers.context import LayerContext
from demitasse.layers.registry import register_layer

EPS = 1e-9


class SegNetBN(ChannelNorm):
    """In mode LEARN, normalize each channel by the batch; then scale and shift it.

    Mode INFERENCE expects the statistics to be part of scale and shift. May run in place.

    Shapes: bottom (N, C, ...) -> top the same; in mode LEARN, further tops take mean and variance
    of the batch, shaped like the parameters: scale, shift (1, C, 1, 1).

    Raises:
        ConfigError: Further tops in mode INFERENCE.
        ShapeError: The bottom has fewer than two axes, or another number of channels than before.
    """

    traceable = True
    tops = Between(1, 3)
    affine = (0, 1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.bn_param
        self.by_batch = p.bn_mode == BNParameter.LEARN
        if len(top) > 1 and not self.by_batch:
            message = "only SegNet's BN in mode LEARN has mean and variance as further tops"
            raise conflict("bn_param.bn_mode", message)
        self.channels, self.fraction = self.channels_of(bottom).count, 0.0
        self.eps = EPS if self.by_batch else 0.0
        for filler in (p.scale_filler, p.shift_filler):
            self.add_param((1, self.channels, 1, 1), filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        for blob in top[1:]:
            blob.reshape((1, self.channels, 1, 1))
        if len(top) > 1:
            self.op = None
        elif not self.by_batch:
            n, c, *spatial = bottom[0].shape
            self.op = ops.Scale(self.dtype, n, c, math.prod(spatial), True)

    def running_averages(self) -> tuple[Array, Array]:
        """Return mean and variance of a normalisation that changes nothing."""
        return self.zeros((self.channels,)), self.full((self.channels,), 1.0)


SEGNET = ("scale_filler", "shift_filler", "bn_mode")
AVERAGES = ("slope_filler", "bias_filler", "momentum", "eps", "frozen")


class BN(ChannelNorm):
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
    tops = Between(1, 3)
    averages, affine = (2, 3), (0, 1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.bn_param
        if len(top) > 1:
            message = "only SegNet's BN in mode LEARN has mean and variance as further tops"
            raise conflict("bn_param.bn_mode", message)
        self.fraction, self.eps = p.momentum, p.eps
        self.by_batch = not p.frozen and self.phase == "TRAIN"
        self.channels = self.channels_of(bottom).count
        variance = FillerParameter(value=float(p.frozen))
        for filler in (p.slope_filler, p.bias_filler, FillerParameter(), variance):
            self.add_param((1, self.channels), filler)
        while len(self.param.param) < 4:
            self.param.param.add()
        for place in (*self.affine, *self.averages) if p.frozen else self.averages:
            self.param.param[place].lr_mult = self.param.param[place].decay_mult = 0
            self.set_param_propagate_down(place, False)


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
