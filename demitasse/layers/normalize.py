"""Normalize: y = s x / sqrt(sum x^2 + eps), with a learned scale s."""

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.io.proto import FillerParameter
from demitasse.layers.axes import Channels
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.registry import register_layer


@register_layer("Normalize")
class Normalize(Layer):
    """Divide by the length of an item, or of each position, and scale; may run in place.

    The sum goes over a whole item, or with ``across_spatial: false`` over the channels at each
    position. Compared with OpenCV's output. The gradient is exact, where that of SSD is so only for
    one scale for all channels.

    Source: SSD (weiliu89/caffe), ``src/caffe/layers/normalize_layer.cpp``.
    Shapes: bottom (N, C, ...) -> top the same. Scale (), or (C,) with ``channel_shared: false``.

    Raises:
        ShapeError: The bottom has fewer than two axes, or other channels than the scale.
    """

    bottoms = tops = Exactly(1)
    graph_capturable = True

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.norm_param
        self.eps, self.across, self.shared = p.eps, p.across_spatial, p.channel_shared
        self.channels = Channels.of(bottom[0], self.type).count
        ones = FillerParameter(type="constant", value=1)
        filler = p.scale_filler if p.HasField("scale_filler") else ones
        self.add_param(() if self.shared else (self.channels,), filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        channels = Channels.of(bottom[0], self.type)
        if not self.shared:
            channels.need(self.channels, bottom[0], "scales")
        top[0].reshape_like(bottom[0])
        self.axes = tuple(range(1, channels.rest + 2)) if self.across else (1,)
        self.channel_shape = () if self.shared else channels.channel_shape
        self.op = None
        if not self.across:
            self.op = ops.Normalize(self.dtype, bottom[0].shape, self.eps, self.shared)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, x = self.xp, bottom[0].read()
        length = xp.sqrt(xp.sum(x * x, axis=self.axes, keepdims=True) + self.eps)
        unit = x / length
        self.saved("length", length.shape).write(length)
        if top[0] is bottom[0]:
            self.saved("unit", unit.shape).write(unit)
        top[0].write(unit * self._scale())

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, dy, shape = self.xp, top[0].read_diff(), bottom[0].shape
        size = tuple(1 if axis in self.axes else n for axis, n in enumerate(shape))
        length = self.saved("length", size).read()
        in_place = top[0] is bottom[0]
        unit = self.saved("unit", shape).read() if in_place else bottom[0].read() / length
        if self.param_propagate_down(0):
            axes = tuple(i for i in range(len(shape)) if self.shared or i != 1)
            self.blobs[0].add_diff(xp.sum(dy * unit, axis=axes))
        if propagate_down[0]:
            du = dy * self._scale()
            along = xp.sum(du * unit, axis=self.axes, keepdims=True)
            bottom[0].write_diff((du - unit * along) / length)

    def _scale(self) -> Array:
        return self.xp.reshape(self.blobs[0].read(), self.channel_shape)
