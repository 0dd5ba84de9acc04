"""The three products of convolutions, between an image, a map and a weight.

An *image* has C channels and is the larger side; a *map* has M channels, and one value for each
place of the window on the image. Convolution reads the image and makes the map, Deconvolution the
reverse, and the gradient of each is what the other does.

Source: Caffe, ``src/caffe/layers/base_conv_layer.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from demitasse.backends.arrays import Array
from demitasse.backends.windows import Shape, Window
from demitasse.layers.base import Layer
from demitasse.layers.helpers.columns import Canvas

__all__ = ["Correlation"]

CHUNK = 1 << 24
"""Most elements of columns that are held at once, unless a single image needs more."""


class Correlation:
    """Connects images with maps by a weight, in groups of channels.

    Args:
        layer: Makes the arrays.
        window: The window that slides over the image.
        group: How many groups; it divides both numbers of channels.
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
        """Prepare for ``n`` images of a spatial size, and as many places of the window."""
        self._n, self._spatial, self._places = n, image, math.prod(places)
        self._canvas = Canvas(self._layer, self._window, image, places)

    def image(self, values: Array) -> Array:
        """Return what a blob of images holds as (N, C, *spatial)."""
        return self._layer.xp.reshape(values, (self._n, self._channels, *self._spatial))

    def map(self, values: Array) -> Array:
        """Return what a blob of maps holds as (N, M, places)."""
        return self._layer.xp.reshape(values, (self._n, self._maps, self._places))

    def to_map(self, image: Array, weight: Array) -> Array:
        """Return the convolution of an image with the weight.

        Shapes: (N, C, *spatial), ``weight_shape`` -> (N, M, places).
        """
        xp, weight = self._layer.xp, self._by_rows(weight)
        parts = [xp.matmul(weight, self._columns(image[part, ...])) for part in self._chunks()]
        return self.map(self._joined(parts))

    def to_image(self, maps: Array, weight: Array) -> Array:
        """Return the transposed convolution of a map with the weight.

        Shapes: (N, M, places), ``weight_shape`` -> (N, C, *spatial).
        """
        xp = self._layer.xp
        weight = xp.matrix_transpose(self._by_rows(weight))  # (1, G, C/G taps, M/G)
        parts = []
        for part in self._chunks():
            columns = xp.matmul(weight, self._by_group(maps[part, ...]))
            rows = (columns.shape[0], self._channels * self._window.size, self._places)
            parts.append(self._canvas.image(xp.reshape(columns, rows)))
        return self._joined(parts)

    def weight_gradient(self, image: Array, maps: Array) -> Array:
        """Return the sum over images and places of map times columns.

        Shapes: (N, C, *spatial), (N, M, places) -> ``weight_shape``.
        """
        xp, group, rows = self._layer.xp, self._group, self._maps // self._group
        total = self._layer.zeros((group, rows, self._height))
        for part in self._chunks():
            # all images of a part in one product: (G, M/G, N places) x (G, N places, C/G taps)
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
        return self._layer.xp.reshape(self._canvas.columns(image), shape)

    def _by_group(self, maps: Array) -> Array:
        shape = (maps.shape[0], self._group, self._maps // self._group, self._places)
        return self._layer.xp.reshape(maps, shape)

    def _chunks(self) -> Iterator[slice]:
        per_image = self._channels * self._window.size * self._places
        step = max(1, CHUNK // per_image)
        for first in range(0, max(1, self._n), step):
            yield slice(first, min(first + step, self._n))

    def _joined(self, parts: list[Array]) -> Array:
        return parts[0] if len(parts) == 1 else self._layer.xp.concat(parts, axis=0)
