"""BatchNorm: y = (x - mean) / sqrt(variance + eps), channel by channel.

Statistics are those of the batch, which are also added to running averages, or the averages. The
averages are stored as sums: parameter 2 is the common factor of parameters 0 and 1.

Source: Caffe, ``src/caffe/layers/batch_norm_layer.cpp``; the scale and the bias: NVCaffe
(NVIDIA/caffe), the same file.
"""

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import FillerParameter
from demitasse.layers.axes import Channels
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import wrong_shapes
from demitasse.layers.numerics import normalization_backward
from demitasse.layers.registry import register_layer

NV_EPS = 1e-5  # NVCaffe takes no smaller one

SUMS = 3
"""Parameters of averages that are sums: of means, of variances, their common factor."""


class ChannelNorm(Layer):
    """Base of normalisations of each channel, which a factor and an offset may follow.

    Subclasses set the attributes in ``setup``.

    Attributes:
        channels: Number of channels.
        eps: Number that is added to variances.
        fraction: Factor of the running averages when a batch is added.
        by_batch: True for the statistics of the batch, False for the averages.
        averages: Indices of the running averages among the parameters: mean and variance, or
            Caffe's sums of unbiased variances with their factor; none without averages.
        affine: Indices of factors and offsets; none without factors.
    """

    bottoms = tops = Exactly(1)

    channels: int
    eps: float
    fraction: float
    by_batch: bool
    averages: tuple[int, ...] = ()
    affine: tuple[int, ...] = ()

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        channels, shape = self.channels_of(bottom), bottom[0].shape
        channels.need(self.channels, bottom[0], "parameters")
        top[0].reshape_like(bottom[0])
        self.view = shape if len(shape) > 1 else (*shape, 1)  # (N, C, ...)
        self.axes, self.channel_shape = channels.axes, channels.channel_shape
        # values in one channel
        self.rows = bottom[0].count // self.channels if self.channels else 0
        if self.channels and not self.rows and self.by_batch:
            raise wrong_shapes(self.type, "at least one value per channel", bottom[0])
        rule = self.eps, self.fraction, not self.by_batch
        self.op = None
        if self.view == shape and self.affine:
            self.op = ops.AffineBatchNorm(self.dtype, shape, *rule, self.averages, self.affine)
        elif self.view == shape:
            self.op = ops.BatchNorm(self.dtype, shape, *rule)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, x = self.xp, self.xp.reshape(bottom[0].read(), self.view)
        if self.by_batch:
            mean = xp.mean(x, axis=self.axes)
            centred = x - xp.reshape(mean, self.channel_shape)
            variance = xp.mean(centred * centred, axis=self.axes)
            self._add_to_averages(mean, variance)
            for blob, value in zip(top[1:], (mean, variance), strict=False):
                blob.write(xp.reshape(value, blob.shape))
        else:
            mean, variance = self.running_averages()
            centred = x - xp.reshape(mean, self.channel_shape)
        deviation = xp.sqrt(variance + self.eps)
        y = centred / xp.reshape(deviation, self.channel_shape)
        self.saved("deviation", (self.channels,)).write(deviation)
        if self._keeps(bottom, top):
            # a copy, since a layer that runs in place may overwrite the top
            self.saved("normalised", self.view).write(y)
        if self.affine:
            factor, offset = map(self._per_channel, self.affine)
            y = y * factor + offset
        top[0].write(xp.reshape(y, top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, dy = self.xp, self.xp.reshape(top[0].read_diff(), self.view)
        deviation = xp.reshape(self.saved("deviation", (self.channels,)).read(), self.channel_shape)
        learns = [index for index in self.affine if self.param_propagate_down(index)]
        if self.by_batch or learns:
            unit = self._unit(bottom, deviation, kept=self._keeps(bottom, top))
        for index in learns:
            blob, diff = self.blobs[index], dy * unit if index == self.affine[0] else dy
            blob.add_diff(xp.reshape(xp.sum(diff, axis=self.axes), blob.shape))
        if self.affine:
            dy = dy * self._per_channel(self.affine[0])
        if not propagate_down[0]:
            return
        if self.by_batch:
            dy = normalization_backward(xp, dy, unit, self.axes)
        bottom[0].write_diff(xp.reshape(dy / deviation, bottom[0].shape))

    def channels_of(self, bottom: Blobs) -> Channels:
        """Return the channels of the bottom."""
        return Channels.of(bottom[0], self.type)

    def state_blobs(self) -> Blobs:
        return self.all_state_blobs() if self.by_batch else ()

    def all_state_blobs(self) -> Blobs:
        return [self.blobs[index] for index in self.averages]

    @property
    def has_state(self) -> bool:
        return self.by_batch and bool(self.averages)

    def _keeps(self, bottom: Blobs, top: Blobs) -> bool:
        """Return whether normalised values are kept for the gradient."""
        return self.by_batch or (bool(self.affine) and top[0] is bottom[0])

    def _unit(self, bottom: Blobs, deviation: Array, *, kept: bool) -> Array:
        """Return the normalised values of the last pass."""
        if kept:
            return self.saved("normalised", self.view).read()
        mean = self.xp.reshape(self.running_averages()[0], self.channel_shape)
        return (self.xp.reshape(bottom[0].read(), self.view) - mean) / deviation

    def _per_channel(self, index: int) -> Array:
        """Return a parameter in a shape that broadcasts with the bottom."""
        return self.xp.reshape(self.blobs[index].read(), self.channel_shape)

    def running_averages(self) -> tuple[Array, Array]:
        """Return the running averages of mean and variance; of sums, 0 before the first batch."""
        xp, (mean, variance, *weight) = self.xp, (self.blobs[i].read() for i in self.averages)
        if not weight:
            return xp.reshape(mean, (-1,)), xp.reshape(variance, (-1,))
        [factor], one = weight, self.full((1,), 1.0)
        some = factor != 0
        scale = xp.where(some, one / xp.where(some, factor, one), factor)
        return mean * scale, variance * scale

    def _add_to_averages(self, mean: Array, variance: Array) -> None:
        """Add the batch's statistics to the running averages."""
        share, one = 1 - self.fraction, self.full((1,), 1.0)
        if len(self.averages) == SUMS:
            share, correction = 1.0, self.rows / (self.rows - 1) if self.rows > 1 else 1.0
            variance = variance * correction
        for index, value in zip(self.averages, (mean, variance, one), strict=False):
            blob = self.blobs[index]
            more = self.xp.reshape(value * share, blob.shape)
            blob.write(blob.read() * self.fraction + more)


@register_layer("BatchNorm")
class BatchNorm(ChannelNorm):
    """Normalise each channel; may run in place.

    ``use_global_stats`` is true in phase TEST and false in TRAIN unless it is given. With
    ``scale_bias``, or a filler, it is the layer of NVCaffe and of Intel Caffe's MKL engines, which
    then scales and shifts each channel; that is not compared with the originals.

    Shapes: bottom (N, C, ...), or (N,) of a single channel -> top the same. Parameters, none of
    them trained: sum of means (C,), sum of variances (C,), their common factor (1,). NVCaffe's has
    two more: scale, bias (C,).

    Raises:
        ConfigError: A ``param`` asks for the statistics to be trained.
        ShapeError: The bottom has no axes, or another number of channels than before.
    """

    averages = (0, 1, 2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.batch_norm_param
        self.fraction, self.eps = p.moving_average_fraction, p.eps
        given = p.HasField("use_global_stats")
        self.by_batch = not p.use_global_stats if given else self.phase == "TRAIN"
        self.channels = self.channels_of(bottom).count
        for shape in ((self.channels,), (self.channels,), (1,)):
            self.add_param(shape)
        if p.scale_bias or p.HasField("scale_filler") or p.HasField("bias_filler"):
            self.eps, self.affine = max(p.eps, NV_EPS), (3, 4)
            ones = FillerParameter(value=1)
            self.add_param((self.channels,), p.scale_filler if p.HasField("scale_filler") else ones)
            self.add_param((self.channels,), p.bias_filler)
        # the learning rates of the statistics are 0
        for index in self.averages:
            if index == len(self.param.param):
                self.param.param.add(lr_mult=0)
            elif self.affine:  # files for NVCaffe have the rates of scale and bias here
                self.param.param[index].lr_mult = self.param.param[index].decay_mult = 0
            elif self.param.param[index].lr_mult:
                message = (
                    f"param {index} has lr_mult {self.param.param[index].lr_mult:g}, but the "
                    "statistics of BatchNorm are not trained; give lr_mult: 0, or no param at all"
                )
                code = ErrorCode.CONFLICT
                raise ConfigError(message, code=code, field="param.lr_mult", param=index)

    def channels_of(self, bottom: Blobs) -> Channels:
        if bottom[0].num_axes == 1:
            return Channels(count=1, rest=0)
        return super().channels_of(bottom)
