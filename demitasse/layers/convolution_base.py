"""What Convolution and Deconvolution share: fields, weights, and three products.

Both connect an *image* (C channels, the larger side) with a *map* (M channels, one value for each
place of the window). Convolution reads the image and makes the map, Deconvolution the reverse.

Source: Caffe, ``src/caffe/layers/base_conv_layer.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from demitasse.backends.arrays import Array
from demitasse.backends.windows import Shape
from demitasse.errors import ConfigError, NetError, ShapeError
from demitasse.layers.base import AtLeast, Blobs, Layer, positive
from demitasse.layers.helpers.columns import Canvas
from demitasse.layers.helpers.window import convolution_window

__all__ = ["ConvolutionBase"]

CHUNK = 1 << 24
"""Most elements of columns that are held at once, unless a single image needs more."""


class ConvolutionBase(Layer):
    """Several bottoms, as many tops, one weight; channels on ``axis``, spatial axes behind it.

    Shapes: weight (M, C/group, *kernel), where C and M are the channels of image and map;
    bias (num_output,).

    Raises:
        ConfigError: ``num_output`` or ``kernel_size`` is missing, a window field does not fit the
            number of spatial axes, or ``group`` does not divide both channel counts.
        ShapeError: The bottoms differ, or their channels or axes have changed.
        NetError: Stored parameters are not a weight and, with ``bias_term``, a bias.
    """

    bottoms = tops = AtLeast(1)
    same_count = True

    image_channels: int
    map_channels: int

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del top
        p = self.param.convolution_param
        self.axis = bottom[0].canonical_axis(p.axis)
        self.axes = bottom[0].num_axes
        self.window = convolution_window(p, self.axes - self.axis - 1)
        self.channels = bottom[0].shape[self.axis]
        self.m = positive(p.num_output, "convolution_param.num_output")
        depthwise = self.type == "ConvolutionDepthwise"
        self.group = self.channels if depthwise else positive(p.group, "convolution_param.group")
        for name, count in (("bottom's channels", self.channels), ("num_output", self.m)):
            if count % self.group:
                message = f"group {self.group} does not divide the {name}, {count}"
                raise ConfigError(message)
        self.has_bias = p.bias_term
        self.image_channels, self.map_channels = self.sides(self.channels, self.m)
        self._check_stored()
        shape = (self.map_channels, self.image_channels // self.group, *self.window.kernel)
        self.add_param(shape, p.weight_filler)
        if self.has_bias:
            self.add_param((self.m,), p.bias_filler)

    def sides(self, bottom: int, top: int) -> tuple[int, int]:
        """Return image and map channels, given those of bottom and top."""
        raise NotImplementedError(type(self).__name__)

    def top_spatial(self, spatial: Shape) -> Shape:
        """Return the spatial axes of the tops, given those of the bottoms."""
        raise NotImplementedError(type(self).__name__)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        first = bottom[0]
        if first.num_axes != self.axes or first.shape[self.axis] != self.channels:
            message = (
                f"bottom {first.name!r} is {first.shape}; it must keep {self.axes} axes, with "
                f"{self.channels} channels on axis {self.axis}, as when the weight was made"
            )
            raise ShapeError(message)
        for blob in bottom[1:]:
            if blob.shape != first.shape:
                message = (
                    f"all bottoms must have one shape; {first.name!r} is {first.shape}, "
                    f"{blob.name!r} is {blob.shape}"
                )
                raise ShapeError(message)
        lead, spatial = first.shape[: self.axis], first.shape[self.axis + 1 :]
        out = self.top_spatial(spatial)
        for blob in top:
            blob.reshape((*lead, self.m, *out))
        self.n = math.prod(lead)
        image, places = self.sides_spatial(spatial, out)
        self.canvas = Canvas(self, self.window, image, places)
        self.places = math.prod(places)

    def sides_spatial(self, bottom: Shape, top: Shape) -> tuple[Shape, Shape]:
        """Return the spatial axes of image and map, given those of bottom and top."""
        raise NotImplementedError(type(self).__name__)

    # -- the three products, image (N, C, *spatial) and map (N, M, places) ------------------------

    def to_map(self, image: Array) -> Array:
        """Return the convolution of an image with the weight: (N, M, places)."""
        xp, weight = self.xp, self._weight()
        parts = [xp.matmul(weight, self._columns(image[part, ...])) for part in self._chunks()]
        return xp.reshape(self._joined(parts), (self.n, self.map_channels, self.places))

    def to_image(self, maps: Array) -> Array:
        """Return the transposed convolution of a map with the weight: (N, C, *spatial)."""
        xp, weight = self.xp, self._weight()
        weight = xp.matrix_transpose(weight)  # (1, G, C/G taps, M/G)
        parts = []
        for part in self._chunks():
            columns = xp.matmul(weight, self._by_group(maps[part, ...]))
            rows = (columns.shape[0], self.image_channels * self.window.size, self.places)
            parts.append(self.canvas.image(xp.reshape(columns, rows)))
        return self._joined(parts)

    def weight_gradient(self, image: Array, maps: Array) -> Array:
        """Return the sum over images and places of map times columns, in the weight's shape."""
        xp, group = self.xp, self.group
        total = self.zeros((group, self.map_channels // group, self._column_height()))
        for part in self._chunks():
            # all images of a part in one product: (G, M/G, N places) x (G, N places, C/G taps)
            left = xp.permute_dims(self._by_group(maps[part, ...]), (1, 2, 0, 3))
            right = xp.permute_dims(self._columns(image[part, ...]), (1, 0, 3, 2))
            length = left.shape[2] * left.shape[3]
            left = xp.reshape(left, (group, self.map_channels // group, length))
            right = xp.reshape(right, (group, length, self._column_height()))
            total = total + xp.matmul(left, right)
        return xp.reshape(total, self.blobs[0].shape)

    def accumulate(self, image: Array, maps: Array, top_diff: Array) -> None:
        """Add the gradients of weight and bias; ``top_diff`` is (N, num_output, top's places)."""
        if self.param_propagate_down(0):
            self.blobs[0].add_diff(self.weight_gradient(image, maps))
        if self.has_bias and self.param_propagate_down(1):
            self.blobs[1].add_diff(self.xp.sum(top_diff, axis=(0, 2)))

    def with_bias(self, y: Array) -> Array:
        """Add the bias to (N, num_output, places)."""
        if not self.has_bias:
            return y
        return y + self.xp.reshape(self.blobs[1].read(), (self.m, 1))

    # -- pieces ---------------------------------------------------------------------------------

    def _weight(self) -> Array:
        shape = (1, self.group, self.map_channels // self.group, self._column_height())
        return self.xp.reshape(self.blobs[0].read(), shape)

    def _column_height(self) -> int:
        return self.image_channels // self.group * self.window.size

    def _columns(self, image: Array) -> Array:
        shape = (image.shape[0], self.group, self._column_height(), self.places)
        return self.xp.reshape(self.canvas.columns(image), shape)

    def _by_group(self, maps: Array) -> Array:
        shape = (maps.shape[0], self.group, self.map_channels // self.group, self.places)
        return self.xp.reshape(maps, shape)

    def _chunks(self) -> Iterator[slice]:
        per_image = self.image_channels * self.window.size * self.places
        step = max(1, CHUNK // per_image)
        for first in range(0, max(1, self.n), step):
            yield slice(first, min(first + step, self.n))

    def _joined(self, parts: list[Array]) -> Array:
        return parts[0] if len(parts) == 1 else self.xp.concat(parts, axis=0)

    def _check_stored(self) -> None:
        wanted = 2 if self.has_bias else 1
        if self.blobs and len(self.blobs) != wanted:
            what = "a weight and a bias" if self.has_bias else "a weight (bias_term is false)"
            message = f"{len(self.blobs)} parameters are stored, it takes {what}"
            raise NetError(message)
