"""Convolution: y[m, o] = b[m] + sum over c, k of w[m, c, k] x[c, o * stride - pad + k * dilation].

Source: Caffe, ``src/caffe/layers/conv_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.convolution_base import ConvolutionBase
from demitasse.layers.helpers.correlation import Correlation
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
        ConfigError, ShapeError, NetError: See ``ConvolutionBase``; also when the window does
            not fit the bottom.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del top
        self.read_fields(bottom)
        self.correlation = Correlation(
            self, self.window, self.group, image=self.channels, maps=self.m
        )
        self.add_params()

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        spatial = self.spatial(bottom)
        places = self.window.convolved(spatial)
        self.reshape_tops(bottom, top, places)
        self.correlation.fit(self.n, image=spatial, places=places)
        self.op = self.operation(ops.Conv, bottom, top)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        product, weight = self.correlation, self.blobs[0]
        for x, y in zip(bottom, top, strict=True):
            maps = self.with_bias(product.to_map(product.image(x.read()), weight.read()))
            y.write(self.xp.reshape(maps, y.shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        self.refuse_overwritten(bottom, top, propagate_down)
        product, weight = self.correlation, self.blobs[0]
        for x, y, wanted in zip(bottom, top, propagate_down, strict=True):
            dy = product.map(y.read_diff())
            self.accumulate(product.image(x.read()), dy, dy)
            if wanted:
                dx = product.to_image(dy, weight.read())
                x.write_diff(self.xp.reshape(dx, x.shape))
