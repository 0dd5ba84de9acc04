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


@register_layer("BatchNorm")
class BatchNorm(Layer):
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

    bottoms = tops = Exactly(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.batch_norm_param
        self.fraction, self.eps = p.moving_average_fraction, p.eps
        given = p.HasField("use_global_stats")
        self.use_global_stats = p.use_global_stats if given else self.phase == "TEST"
        self.channels = self._channels(bottom).count
        for shape in ((self.channels,), (self.channels,), (1,)):
            self.add_param(shape)
        self.scaled = p.scale_bias or p.HasField("scale_filler") or p.HasField("bias_filler")
        if self.scaled:
            self.eps = max(p.eps, NV_EPS)
            ones = FillerParameter(value=1)
            self.add_param((self.channels,), p.scale_filler if p.HasField("scale_filler") else ones)
            self.add_param((self.channels,), p.bias_filler)
        # the learning rates of the statistics are 0
        for index in range(3):
            if index == len(self.param.param):
                self.param.param.add(lr_mult=0)
            elif self.scaled:  # files for NVCaffe have the rates of scale and bias here
                self.param.param[index].lr_mult = self.param.param[index].decay_mult = 0
            elif self.param.param[index].lr_mult:
                message = (
                    f"param {index} has lr_mult {self.param.param[index].lr_mult:g}, but the "
                    "statistics of BatchNorm are not trained; give lr_mult: 0, or no param at all"
                )
                code = ErrorCode.CONFLICT
                raise ConfigError(message, code=code, field="param.lr_mult", param=index)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        channels, shape = self._channels(bottom), bottom[0].shape
        channels.need(self.channels, bottom[0], "statistics")
        top[0].reshape_like(bottom[0])
        self.view = shape if len(shape) > 1 else (*shape, 1)  # (N, C, ...)
        self.axes, self.spread = channels.axes, channels.spread
        # values in one channel
        self.rows = bottom[0].count // self.channels if self.channels else 0
        if self.channels and not self.rows and not self.use_global_stats:
            raise wrong_shapes("BatchNorm", "at least one value per channel", bottom[0])
        self.op = None
        rule = self.eps, self.fraction, self.use_global_stats
        if self.view == shape and self.scaled:
            self.op = ops.AffineBatchNorm(self.dtype, shape, *rule, (0, 1, 2), (3, 4))
        elif self.view == shape:
            self.op = ops.BatchNorm(self.dtype, shape, *rule)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, x = self.xp, self.xp.reshape(bottom[0].read(), self.view)
        if self.use_global_stats:
            mean, variance = self._averages()
            centred = x - xp.reshape(mean, self.spread)
        else:
            mean = xp.mean(x, axis=self.axes)
            centred = x - xp.reshape(mean, self.spread)
            variance = xp.mean(centred * centred, axis=self.axes)
            self._add_to_averages(mean, variance)
        deviation = xp.sqrt(variance + self.eps)
        y = centred / xp.reshape(deviation, self.spread)
        self.saved("deviation", (self.channels,)).write(deviation)
        if not self.use_global_stats or self.scaled:
            # a copy, since a layer that runs in place may overwrite the top
            self.saved("normalised", self.view).write(y)
        if self.scaled:
            y = y * self._spread(3) + self._spread(4)
        top[0].write(xp.reshape(y, top[0].shape))

    def state_blobs(self) -> Blobs:
        return () if self.use_global_stats else self.blobs[:3]

    def all_state_blobs(self) -> Blobs:
        return self.blobs[:3]

    @property
    def has_state(self) -> bool:
        return not self.use_global_stats

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, dy = self.xp, self.xp.reshape(top[0].read_diff(), self.view)
        if self.scaled:
            unit = self.saved("normalised", self.view).read()
            for index, diff in ((3, dy * unit), (4, dy)):
                if self.param_propagate_down(index):
                    self.blobs[index].add_diff(xp.sum(diff, axis=self.axes))
            dy = dy * self._spread(3)
        if not propagate_down[0]:
            return
        deviation = xp.reshape(self.saved("deviation", (self.channels,)).read(), self.spread)
        if not self.use_global_stats:
            y = self.saved("normalised", self.view).read()
            dy = normalization_backward(xp, dy, y, self.axes)
        bottom[0].write_diff(xp.reshape(dy / deviation, bottom[0].shape))

    def _spread(self, index: int) -> Array:
        """Return a parameter in a shape that broadcasts with the bottom."""
        return self.xp.reshape(self.blobs[index].read(), self.spread)

    def _averages(self) -> tuple[Array, Array]:
        """Return the running averages of mean and variance; 0 before the first batch."""
        factor = self.blobs[2].read()
        one = self.full((1,), 1.0)
        some = factor != 0
        scale = self.xp.where(some, one / self.xp.where(some, factor, one), factor)
        return self.blobs[0].read() * scale, self.blobs[1].read() * scale

    def _add_to_averages(self, mean: Array, variance: Array) -> None:
        """Add the batch's statistics to the running sums; the variance is unbiased."""
        correction = self.rows / (self.rows - 1) if self.rows > 1 else 1.0
        for blob, value in zip(self.blobs, (mean, variance * correction, 1.0), strict=False):
            blob.write(blob.read() * self.fraction + value)

    def _channels(self, bottom: Blobs) -> Channels:
        if bottom[0].num_axes == 1:
            return Channels(count=1, rest=0)
        return Channels.of(bottom[0], "BatchNorm")
