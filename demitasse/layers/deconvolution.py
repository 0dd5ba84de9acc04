"""Deconvolution: the gradient of a Convolution with respect to its bottom, plus a bias.

Source: Caffe, ``src/caffe/layers/deconv_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.convolution_base import ConvolutionBase
from demitasse.layers.helpers.correlation import Correlation
from demitasse.layers.registry import register

__all__ = ["Deconvolution"]


@register("Deconvolution")
class Deconvolution(ConvolutionBase):
    """Spread every element of the bottom over a window of the top.

    Shapes: every bottom (*lead, C, *places) -> its top (*lead, num_output, *spatial) with
    spatial = stride * (places - 1) + dilation * (kernel - 1) + 1 - 2 * pad;
    weight (C, num_output/group, *kernel); bias (num_output,).

    Raises:
        ConfigError, ShapeError, NetError: See ``ConvolutionBase``; also when nothing is left
            between the pads.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del top
        self.read_fields(bottom)
        self.correlation = Correlation(
            self, self.window, self.group, image=self.m, maps=self.channels
        )
        self.add_params()

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        places = self.spatial(bottom)
        spatial = self.window.deconvolved(places)
        self.reshape_tops(bottom, top, spatial)
        self.correlation.fit(self.n, image=spatial, places=places)
        self.op = self.operation(ops.Deconv, bottom, top)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        product, weight = self.correlation, self.blobs[0]
        for x, y in zip(bottom, top, strict=True):
            image = product.to_image(product.map(x.read()), weight.read())
            flat = self.xp.reshape(image, (self.n, self.m, y.count_from(self.axis + 1)))
            y.write(self.xp.reshape(self.with_bias(flat), y.shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        self.refuse_overwritten(bottom, top, propagate_down)
        product, weight = self.correlation, self.blobs[0]
        for x, y, wanted in zip(bottom, top, propagate_down, strict=True):
            dy = product.image(y.read_diff())
            flat = self.xp.reshape(dy, (self.n, self.m, y.count_from(self.axis + 1)))
            self.accumulate(dy, product.map(x.read()), flat)
            if wanted:
                dx = product.to_map(dy, weight.read())
                x.write_diff(self.xp.reshape(dx, x.shape))
