"""Im2col: values under a convolution's window, one channel for each kernel offset."""

import math

from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import wrong_shapes
from demitasse.layers.registry import register_layer
from demitasse.layers.windows import PaddedImage, convolution_window


@register_layer("Im2col")
class Im2col(Layer):
    """Return the values at every kernel offset side by side; beyond the image there are zeros.

    Source: Caffe, ``src/caffe/layers/im2col_layer.cpp``.
    Shapes: bottom (*lead, C, *spatial) -> top (*lead, C * size, *positions), the kernel offsets of
    one channel next to each other; ``axis`` is that of C.

    Raises:
        ConfigError: The fields of ``convolution_param`` do not describe a window.
        ShapeError: There is no spatial axis, or the window does not fit.
    """

    bottoms = tops = Exactly(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.convolution_param
        self.axis = bottom[0].canonical_axis(p.axis)
        axes = bottom[0].num_axes - self.axis - 1
        if axes < 1:
            raise wrong_shapes("Im2col", f"spatial axes after axis {self.axis}", bottom[0])
        self.window = convolution_window(p, axes)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        shape = bottom[0].shape
        lead, channels, spatial = shape[: self.axis], shape[self.axis], shape[self.axis + 1 :]
        if len(spatial) != len(self.window.kernel):
            expected = f"spatial axes for the window {self.window.kernel}"
            raise wrong_shapes("Im2col", expected, bottom[0])
        out = self.window.convolved(spatial)
        self.padded = PaddedImage(self, self.window, spatial, out)
        self.image_shape = (math.prod(lead), channels, *spatial)
        self.column_shape = (math.prod(lead), channels * self.window.size, math.prod(out))
        top[0].reshape((*lead, channels * self.window.size, *out))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        image = self.xp.reshape(bottom[0].read(), self.image_shape)
        top[0].write(self.xp.reshape(self.padded.columns(image), top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            columns = self.xp.reshape(top[0].read_diff(), self.column_shape)
            bottom[0].write_diff(self.xp.reshape(self.padded.image(columns), bottom[0].shape))
