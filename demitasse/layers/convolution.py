"""Convolution: y[m, o] = b[m] + sum over c, k of w[m, c, k] x[c, o * stride - pad + k * dilation].

Source: Caffe, ``src/caffe/layers/conv_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.windows import Shape
from demitasse.blob import Blob
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.convolution_base import ConvolutionBase
from demitasse.layers.registry import register

__all__ = ["Convolution"]


@register("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution")
class Convolution(ConvolutionBase):
    """Slide a window over any number of spatial axes and multiply by a weight.

    Forks of Caffe know two more names of it: DepthwiseConvolution is the same layer, and
    ConvolutionDepthwise takes every channel as a group, whatever ``group`` is. The two are not
    compared with the originals.

    Shapes: every bottom (*lead, C, *spatial) -> its top (*lead, num_output, *places), ``axis`` is
    that of C; weight (num_output, C/group, *kernel); bias (num_output,).

    Raises:
        ConfigError, ShapeError, NetError: See :class:`ConvolutionBase`; also when the window does
            not fit the bottom.
    """

    def sides(self, bottom: int, top: int) -> tuple[int, int]:
        return bottom, top

    def top_spatial(self, spatial: Shape) -> Shape:
        return self.window.convolved(spatial)

    def sides_spatial(self, bottom: Shape, top: Shape) -> tuple[Shape, Shape]:
        return bottom, top

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = ops.Conv(
            dtype=self.dtype,
            bottom=bottom[0].shape,
            top=top[0].shape,
            axis=self.axis,
            kernel=self.window.kernel,
            stride=self.window.stride,
            pad=self.window.pad,
            dilation=self.window.dilation,
            group=self.group,
            bias=self.has_bias,
        )

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        for x, y in zip(bottom, top, strict=True):
            maps = self.with_bias(self.to_map(self._image(x.read())))
            y.write(self.xp.reshape(maps, y.shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        self.refuse_overwritten(bottom, top, propagate_down)
        for x, y, wanted in zip(bottom, top, propagate_down, strict=True):
            dy = self._map(y)
            self.accumulate(self._image(x.read()), dy, dy)
            if wanted:
                x.write_diff(self.xp.reshape(self.to_image(dy), x.shape))

    def _image(self, x: Array) -> Array:
        return self.xp.reshape(x, (self.n, self.image_channels, *self.canvas.spatial))

    def _map(self, y: Blob) -> Array:
        return self.xp.reshape(y.read_diff(), (self.n, self.map_channels, self.places))
