"""Convolution and Deconvolution."""

import math
from typing import ClassVar

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.windows import Shape
from demitasse.errors import ErrorCode, NetError
from demitasse.layers.base import AtLeast, Blobs, Flags, Layer
from demitasse.layers.checks import out_of_range, positive, wrong_shapes
from demitasse.layers.registry import register_layer
from demitasse.layers.windows import Correlation, convolution_window


class ConvolutionBase(Layer):
    """Several bottoms, as many tops, one weight; channels on ``axis``, then spatial axes.

    The base class has the fields, the parameters and the checks. Each subclass computes by a
    :class:`Correlation`; a Deconvolution exchanges the roles of image and map.

    Shapes: weight that of the correlation; bias (num_output,).

    Raises:
        ConfigError: ``num_output`` or ``kernel_size`` is missing, a window field does not fit the
            number of spatial axes, or ``group`` does not divide both channel counts.
        ShapeError: The bottoms differ or have no channels, or channels or axes have changed.
        NetError: Stored parameters are not a weight and, with ``bias_term``, a bias.
    """

    bottoms = tops = AtLeast(1)
    same_count = True

    transposed: ClassVar[bool] = False
    """True if the bottom has the maps of the correlation, and the top its images."""

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.convolution_param
        self.axis = bottom[0].canonical_axis(p.axis)
        self.axes = bottom[0].num_axes
        self.window = convolution_window(p, self.axes - self.axis - 1)
        self.channels = bottom[0].shape[self.axis]
        if not self.channels:
            raise wrong_shapes(self.type, f"channels on axis {self.axis}", bottom[0])
        self.m = positive(p.num_output, "convolution_param.num_output")
        depthwise = self.type == "ConvolutionDepthwise"
        self.group = self.channels if depthwise else positive(p.group, "convolution_param.group")
        for name, count in (("bottom's channels", self.channels), ("num_output", self.m)):
            if count % self.group:
                expected = f"a divisor of the {name}, {count}"
                raise out_of_range("convolution_param.group", self.group, expected)
        self.has_bias = p.bias_term
        c, m = self.channels, self.m
        image, maps = (m, c) if self.transposed else (c, m)
        self.correlation = Correlation(self, self.window, self.group, image=image, maps=maps)
        wanted = 2 if self.has_bias else 1
        if self.blobs and len(self.blobs) != wanted:
            what = "a weight and a bias" if self.has_bias else "a weight (bias_term is false)"
            message = f"got {len(self.blobs)} stored parameters, expected {what}"
            code = ErrorCode.COUNT_MISMATCH
            raise NetError(message, code=code, got=len(self.blobs), expected=wanted)
        self.add_param(self.correlation.weight_shape, p.weight_filler)
        if self.has_bias:
            self.add_param((self.m,), p.bias_filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        spatial, w = self.spatial(bottom), self.window
        lead = bottom[0].shape[: self.axis]
        out = w.deconvolved(spatial) if self.transposed else w.convolved(spatial)
        for blob in top:
            blob.reshape((*lead, self.m, *out))
        self.n = math.prod(lead)
        image, places = (out, spatial) if self.transposed else (spatial, out)
        self.correlation.fit(self.n, image=image, places=places)
        self.op = (ops.Deconv if self.transposed else ops.Conv)(
            *(self.dtype, bottom[0].shape, top[0].shape, self.axis),
            *(w.kernel, w.stride, w.pad, w.dilation),
            group=self.group,
            bias=self.has_bias,
            after=w.after,
        )

    def spatial(self, bottom: Blobs) -> Shape:
        """Return the spatial axes of the bottoms; check the other axes."""
        first = bottom[0]
        if first.num_axes != self.axes or first.shape[self.axis] != self.channels:
            expected = (
                f"{self.axes} axes, with {self.channels} channels on axis {self.axis}, as when the "
                "weight was made"
            )
            raise wrong_shapes(self.type, expected, first)
        for blob in bottom[1:]:
            if blob.shape != first.shape:
                raise wrong_shapes(self.type, "bottoms of one shape", first, blob)
        spatial = first.shape[self.axis + 1 :]
        if self.transposed and 0 in spatial:
            raise wrong_shapes(self.type, "spatial axes above 0", first)
        return spatial

    def with_bias(self, y: Array) -> Array:
        """Add the bias to (N, num_output, places)."""
        if not self.has_bias:
            return y
        return y + self.xp.reshape(self.blobs[1].read(), (self.m, 1))

    def accumulate(self, image: Array, maps: Array, top_diff: Array) -> None:
        """Add the gradients of weight and bias; ``top_diff`` is (N, num_output, top's places)."""
        if self.param_propagate_down(0):
            self.blobs[0].add_diff(self.correlation.weight_gradient(image, maps))
        if self.has_bias and self.param_propagate_down(1):
            self.blobs[1].add_diff(self.xp.sum(top_diff, axis=(0, 2)))


@register_layer("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "NdConvolution")
class Convolution(ConvolutionBase):
    """Slide a window over any number of spatial axes and multiply by a weight.

    y[m, o] = b[m] + sum over c, k of w[m, c, k] x[c, o * stride - pad + k * dilation].
    Forks of Caffe have three more names of it: DepthwiseConvolution and video-caffe's NdConvolution
    are the same layer, and ConvolutionDepthwise takes every channel as a group, whatever ``group``
    is. The three are not compared with the originals.

    Source: Caffe, ``src/caffe/layers/conv_layer.cpp``.
    Shapes: every bottom (*lead, C, *spatial) -> its top (*lead, num_output, *places), ``axis`` is
    that of C; weight (num_output, C/group, *kernel); bias (num_output,).

    Raises:
        ConfigError, ShapeError, NetError: See ``ConvolutionBase``; also when the window does
            not fit the bottom.
    """

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


@register_layer("Deconvolution")
class Deconvolution(ConvolutionBase):
    """Spread every element of the bottom over a window of the top.

    The gradient of a Convolution with respect to its bottom, plus a bias.

    Source: Caffe, ``src/caffe/layers/deconv_layer.cpp``.
    Shapes: every bottom (*lead, C, *places) -> its top (*lead, num_output, *spatial) with
    spatial = stride * (places - 1) + dilation * (kernel - 1) + 1 - the pads of both sides;
    weight (C, num_output/group, *kernel); bias (num_output,).

    Raises:
        ConfigError, ShapeError, NetError: See ``ConvolutionBase``; also when there are no places,
            or nothing is left between the pads.
    """

    transposed = True

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
