"""Deconvolution: the gradient of a Convolution with respect to its bottom, plus a bias.

Source: Caffe, ``src/caffe/layers/deconv_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.windows import Shape
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.convolution_base import ConvolutionBase
from demitasse.layers.registry import register

__all__ = ["Deconvolution"]


@register("Deconvolution")
class Deconvolution(ConvolutionBase):
    """Spread every element of the bottom over a window of the top.

    Shapes: every bottom (*lead, C, *places) -> its top (*lead, num_output, *spatial) with
    spatial = stride * (places - 1) + dilation * (kernel - 1) + 1 - 2 * pad;
    weight (C, num_output/group, *kernel); bias (num_output,).

    Raises:
        ConfigError, ShapeError, NetError: See :class:`ConvolutionBase`; also when nothing is left
            between the pads.
    """

    def sides(self, bottom: int, top: int) -> tuple[int, int]:
        return top, bottom

    def top_spatial(self, spatial: Shape) -> Shape:
        return self.window.deconvolved(spatial)

    def sides_spatial(self, bottom: Shape, top: Shape) -> tuple[Shape, Shape]:
        return top, bottom

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = ops.Deconv(
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
            image = self.to_image(self._map(x.read()))
            flat = self.xp.reshape(image, (self.n, self.m, y.count_from(self.axis + 1)))
            y.write(self.xp.reshape(self.with_bias(flat), y.shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        self.refuse_overwritten(bottom, top, propagate_down)
        for x, y, wanted in zip(bottom, top, propagate_down, strict=True):
            dy = self.xp.reshape(y.read_diff(), (self.n, self.m, *self.canvas.spatial))
            flat = self.xp.reshape(dy, (self.n, self.m, y.count_from(self.axis + 1)))
            self.accumulate(dy, self._map(x.read()), flat)
            if wanted:
                x.write_diff(self.xp.reshape(self.to_map(dy), x.shape))

    def _map(self, x: Array) -> Array:
        return self.xp.reshape(x, (self.n, self.map_channels, self.places))
