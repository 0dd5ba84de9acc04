"""Sliding windows on images: im2col, col2im and the products of convolutions.

A padded image is an image with a border. One kernel offset of a window selects a strided slice of
the padded image at all output positions. Columns (im2col) are these slices side by side; col2im,
the transpose, adds columns back.

Source: Caffe, ``src/caffe/util/im2col.cpp``, ``src/caffe/layers/base_conv_layer.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from demitasse.backends.arrays import Array
from demitasse.backends.windows import Shape, Window
from demitasse.io.proto import ConvolutionParameter
from demitasse.layers.base import Layer
from demitasse.layers.checks import conflict, out_of_range, wrong_count


class PaddedImage:
    """Image with a border, for the sliding window of a layer.

    Args:
        layer: Creates the arrays.
        window: The sliding window.
        spatial: Size of the image.
        out: Number of output positions along each axis.
    """

    def __init__(self, layer: Layer, window: Window, spatial: Shape, out: Shape) -> None:
        self.layer, self.window, self.spatial, self.out = layer, window, spatial, out
        self.size = window.canvas(spatial, out)
        self._inside = (slice(None), slice(None), *window.inside(spatial))

    @cached_property
    def kernel_offsets(self) -> list[Shape]:
        """Kernel offsets whose slice overlaps the image; the other slices have border only."""
        return self.window.taps_on(self.spatial, self.out)

    def pad(self, image: Array, around: float = 0) -> Array:
        """Return the padded image.

        Shapes: (N, C, *spatial) -> (N, C, *size).
        """
        if self.size == self.spatial:
            return image
        padded = self.layer.full((*image.shape[:2], *self.size), around)
        padded[self._inside] = image
        return padded

    def blank(self, n: int, channels: int) -> Array:
        """Return a padded image of zeros. Shape: (n, channels, *size)."""
        return self.layer.zeros((n, channels, *self.size))

    def crop(self, padded: Array) -> Array:
        """Return a padded image without its border. Shapes: (N, C, *size) -> (N, C, *spatial)."""
        return padded[self._inside]

    def slice_for(self, offset: Shape) -> tuple[slice, ...]:
        """Return the slice of one kernel offset: (N, C, *size) -> (N, C, *out)."""
        return (slice(None), slice(None), *self.window.reach(offset, self.out))

    def columns(self, image: Array) -> Array:
        """Return the columns (im2col): the values at each kernel offset and output position.

        Shapes: (N, C, *spatial) -> (N, C * kernel size, positions).
        """
        n, channels = image.shape[:2]
        rows = (n, channels * self.window.size, math.prod(self.out))
        if self.window.is_pointwise:
            return self.layer.xp.reshape(image, rows)
        padded = self.pad(image)
        seen = [padded[self.slice_for(offset)] for offset in self.window.taps()]
        return self.layer.xp.reshape(self.layer.xp.stack(seen, axis=2), rows)

    def image(self, columns: Array) -> Array:
        """Return the sum of columns in an image (col2im): the transpose of :meth:`columns`.

        Shapes: (N, C * kernel size, positions) -> (N, C, *spatial).
        """
        xp, size = self.layer.xp, self.window.size
        n, channels = columns.shape[0], columns.shape[1] // size
        if self.window.is_pointwise:
            return xp.reshape(columns, (n, channels, *self.spatial))
        parts = xp.reshape(columns, (n, channels, size, *self.out))
        padded = self.blank(n, channels)
        for i, offset in enumerate(self.window.taps()):
            padded[self.slice_for(offset)] += parts[:, :, i, ...]
        return self.crop(padded)


CHUNK = 1 << 24
"""Most elements of columns in memory, unless a single image needs more."""


class Correlation:
    """Products of an image, a map and a weight, in groups of channels.

    An image has C channels. A map has M channels, and one value for each position of the window on
    the image. Convolution computes maps from images, Deconvolution images from maps; the gradient
    of each is the other.

    Args:
        layer: Creates the arrays.
        window: The window that slides over the image.
        group: Number of groups, a divisor of both numbers of channels.
        image: Channels of the image.
        maps: Channels of the map.

    Attributes:
        weight_shape: (M, C/group, *kernel).
    """

    def __init__(self, layer: Layer, window: Window, group: int, *, image: int, maps: int) -> None:
        self._layer, self._window, self._group = layer, window, group
        self._channels, self._maps = image, maps
        self._height = image // group * window.size  # rows of a group's columns
        self.weight_shape = (maps, image // group, *window.kernel)

    def fit(self, n: int, *, image: Shape, places: Shape) -> None:
        """Prepare for ``n`` images of a spatial size, and the positions of the window."""
        self._n, self._spatial, self._places = n, image, math.prod(places)
        self._padded = PaddedImage(self._layer, self._window, image, places)

    def image(self, values: Array) -> Array:
        """Return the values of a blob of images as (N, C, *spatial)."""
        return self._layer.xp.reshape(values, (self._n, self._channels, *self._spatial))

    def map(self, values: Array) -> Array:
        """Return the values of a blob of maps as (N, M, places)."""
        return self._layer.xp.reshape(values, (self._n, self._maps, self._places))

    def to_map(self, image: Array, weight: Array) -> Array:
        """Return the convolution of an image with the weight.

        Shapes: (N, C, *spatial), ``weight_shape`` -> (N, M, places).
        """
        xp, weight = self._layer.xp, self._by_rows(weight)
        parts = [xp.matmul(weight, self._columns(image[part, ...])) for part in self._chunks()]
        return self.map(self._concatenated(parts))

    def to_image(self, maps: Array, weight: Array) -> Array:
        """Return the transposed convolution of a map with the weight.

        Shapes: (N, M, places), ``weight_shape`` -> (N, C, *spatial).
        """
        xp = self._layer.xp
        weight = xp.matrix_transpose(self._by_rows(weight))  # (1, G, C/G offsets, M/G)
        parts = []
        for part in self._chunks():
            columns = xp.matmul(weight, self._by_group(maps[part, ...]))
            rows = (columns.shape[0], self._channels * self._window.size, self._places)
            parts.append(self._padded.image(xp.reshape(columns, rows)))
        return self._concatenated(parts)

    def weight_gradient(self, image: Array, maps: Array) -> Array:
        """Return the sum over images and places of map times columns.

        Shapes: (N, C, *spatial), (N, M, places) -> ``weight_shape``.
        """
        xp, group, rows = self._layer.xp, self._group, self._maps // self._group
        total = self._layer.zeros((group, rows, self._height))
        for part in self._chunks():
            # all images of a part in one product: (G, M/G, N places) x (G, N places, C/G offsets)
            left = xp.permute_dims(self._by_group(maps[part, ...]), (1, 2, 0, 3))
            right = xp.permute_dims(self._columns(image[part, ...]), (1, 0, 3, 2))
            length = left.shape[2] * left.shape[3]
            left = xp.reshape(left, (group, rows, length))
            right = xp.reshape(right, (group, length, self._height))
            total = total + xp.matmul(left, right)
        return xp.reshape(total, self.weight_shape)

    def _by_rows(self, weight: Array) -> Array:
        shape = (1, self._group, self._maps // self._group, self._height)
        return self._layer.xp.reshape(weight, shape)

    def _columns(self, image: Array) -> Array:
        shape = (image.shape[0], self._group, self._height, self._places)
        return self._layer.xp.reshape(self._padded.columns(image), shape)

    def _by_group(self, maps: Array) -> Array:
        shape = (maps.shape[0], self._group, self._maps // self._group, self._places)
        return self._layer.xp.reshape(maps, shape)

    def _chunks(self) -> Iterator[slice]:
        per_image = self._channels * self._window.size * self._places
        step = max(1, CHUNK // per_image)
        for first in range(0, max(1, self._n), step):
            yield slice(first, min(first + step, self._n))

    def _concatenated(self, parts: list[Array]) -> Array:
        return parts[0] if len(parts) == 1 else self._layer.xp.concat(parts, axis=0)


def convolution_window(param: ConvolutionParameter, axes: int) -> Window:
    """Read the window of a convolution over ``axes`` spatial axes.

    Raises:
        ConfigError: A field is given in two ways, not once per axis, or 0.
    """
    kernel = _per_axis(
        axes, "kernel", "kernel_size", param.kernel_size, _hw(param, "kernel", axes), None
    )
    stride = _per_axis(axes, "stride", "stride", param.stride, _hw(param, "stride", axes), 1)
    pad = _per_axis(axes, "pad", "pad", param.pad, _hw(param, "pad", axes), 0)
    dilation = _per_axis(axes, "dilation", "dilation", param.dilation, None, 1)
    for name, values in (("kernel_size", kernel), ("stride", stride)):
        if min(values, default=1) <= 0:
            raise out_of_range(f"convolution_param.{name}", values, "numbers above 0")
    return Window(kernel, stride, pad, dilation)


def _hw(param: ConvolutionParameter, name: str, axes: int) -> Shape | None:
    """Return the values of ``<name>_h`` and ``<name>_w`` when one of them is given."""
    height, width = f"{name}_h", f"{name}_w"
    if not (param.HasField(height) or param.HasField(width)):
        return None
    if axes != 2:
        message = (
            f"convolution_param.{height} and {width} are for 2 spatial axes, the bottom has "
            f"{axes}; give {name} once per axis instead"
        )
        raise conflict(f"convolution_param.{height}", message)
    return getattr(param, height), getattr(param, width)


def _per_axis(
    axes: int,
    name: str,
    listed_name: str,
    listed: Sequence[int],
    hw: Shape | None,
    default: int | None,
) -> Shape:
    if hw is not None:
        if listed:
            message = (
                f"convolution_param has both {listed_name} and {name}_h or {name}_w; remove one"
            )
            raise conflict(f"convolution_param.{listed_name}", message)
        return hw
    if not listed and default is not None:
        return (default,) * axes
    if len(listed) == 1:
        return (listed[0],) * axes
    if len(listed) != axes:
        expected = f"1, or {axes}, one for each spatial axis"
        raise wrong_count(f"convolution_param.{listed_name}", len(listed), expected)
    return tuple(listed)
