"""What Convolution and Deconvolution share: fields, parameters, and checks of shapes.

What they compute is one :class:`Correlation`, which each holds the other way round.

Source: Caffe, ``src/caffe/layers/base_conv_layer.cpp``.
"""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.windows import Shape
from demitasse.errors import ErrorCode, NetError
from demitasse.layers.base import AtLeast, Blobs, Layer
from demitasse.layers.checks import out_of_range, positive, wrong_shapes
from demitasse.layers.helpers.correlation import Correlation
from demitasse.layers.helpers.window import convolution_window

__all__ = ["ConvolutionBase"]


class ConvolutionBase(Layer):
    """Several bottoms, as many tops, one weight; channels on ``axis``, spatial axes behind it.

    Shapes: weight that of the correlation; bias (num_output,).

    Raises:
        ConfigError: ``num_output`` or ``kernel_size`` is missing, a window field does not fit the
            number of spatial axes, or ``group`` does not divide both channel counts.
        ShapeError: The bottoms differ or have no channels, or channels or axes have changed.
        NetError: Stored parameters are not a weight and, with ``bias_term``, a bias.
    """

    bottoms = tops = AtLeast(1)
    same_count = True

    correlation: Correlation

    def read_fields(self, bottom: Blobs) -> None:
        """Read window, channels and groups."""
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

    def add_params(self) -> None:
        """Make the weight of the correlation, and the bias."""
        p = self.param.convolution_param
        wanted = 2 if self.has_bias else 1
        if self.blobs and len(self.blobs) != wanted:
            what = "a weight and a bias" if self.has_bias else "a weight (bias_term is false)"
            what = "a weight and a bias" if self.has_bias else "a weight (bias_term is false)"
            message = f"got {len(self.blobs)} stored parameters, expected {what}"
            raise NetError(
                message, code=ErrorCode.COUNT_MISMATCH, got=len(self.blobs), expected=wanted
            )
        self.add_param(self.correlation.weight_shape, p.weight_filler)
        if self.has_bias:
            self.add_param((self.m,), p.bias_filler)

    def spatial(self, bottom: Blobs) -> Shape:
        """Return the spatial axes of the bottoms, which must be as when the weight was made."""
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
        return first.shape[self.axis + 1 :]

    def reshape_tops(self, bottom: Blobs, top: Blobs, spatial: Shape) -> None:
        """Give the tops the lead axes of the bottoms, ``num_output`` channels and these axes."""
        lead = bottom[0].shape[: self.axis]
        for blob in top:
            blob.reshape((*lead, self.m, *spatial))
        self.n = math.prod(lead)

    def operation(self, kind: type[ops.Conv], bottom: Blobs, top: Blobs) -> ops.Conv:
        """Return what a backend is told of each bottom and its top."""
        return kind(
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
