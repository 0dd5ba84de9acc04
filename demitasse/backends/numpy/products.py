"""The three products of a convolution: image with weight, map with weight, map with image."""

from __future__ import annotations

import numpy as np

from demitasse.backends.numpy.columns import Columns
from demitasse.backends.numpy.engine import Engine
from demitasse.backends.windows import ConvGeometry

__all__ = ["Products"]


class Products:
    """Matrix products over columns.

    All arrays are in C order: image (n, C, *spatial), map (n, M, *positions), weight
    (M, C/G, *kernel).

    Args:
        engine: Lends working memory.
        geometry: Image, map and window.
        dtype: Of all arrays.
    """

    def __init__(self, engine: Engine, geometry: ConvGeometry, dtype: str) -> None:
        self.engine, self.g, self.dtype = engine, geometry, dtype
        self.columns = Columns(engine, geometry, dtype)
        self._direct = geometry.window.is_pointwise and self.columns.single

    @property
    def workspace(self) -> int:
        """Bytes of scratch in use at once."""
        return self.columns.workspace

    def to_map(
        self, image: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, maps: np.ndarray
    ) -> None:
        """Write the convolution of an image into ``maps``; the bias is (M,)."""
        g, columns = self.g, self.columns
        matrix = self._by_group(weight)
        if self._direct:
            np.matmul(matrix, self._flat_image(image), out=self._flat_map(maps))
            if bias is not None:
                flat = maps.reshape(g.n, g.maps, g.map_plane)
                flat += bias[:, np.newaxis]
            return
        for chunk in columns.chunks():
            gathered = columns.gather(image, chunk)
            room = columns.map_room(maps, chunk)
            np.matmul(matrix, gathered, out=room)
            if bias is not None:
                room += bias.reshape(g.group, -1, 1)
            columns.store(room, maps, chunk)

    def to_image(self, maps: np.ndarray, weight: np.ndarray, image: np.ndarray) -> None:
        """Write the transposed convolution of ``maps`` into ``image``."""
        columns = self.columns
        matrix = self._by_group(weight).transpose(0, 2, 1)
        if self._direct:
            np.matmul(matrix, self._flat_map(maps), out=self._flat_image(image))
            return
        # of a depthwise convolution these are outer products, at which matmul is slow
        multiply = np.multiply if self.g.maps == self.g.group else np.matmul
        for chunk in columns.chunks():
            room = columns.blank(chunk)
            multiply(matrix, columns.map_of(maps, chunk), out=room)
            columns.scatter(room, image, chunk)

    def weight_gradient(self, image: np.ndarray, maps: np.ndarray, out: np.ndarray) -> None:
        """Write into ``out`` the sum over images and positions of map times columns."""
        columns, total = self.columns, self._by_group(out)
        for index, chunk in enumerate(columns.chunks()):
            right = columns.gather(image, chunk).transpose(0, 2, 1)
            left = columns.map_of(maps, chunk)
            if index == 0:
                np.matmul(left, right, out=total)
            else:
                part = self.engine.scratch("partial", total.shape, self.dtype)
                np.matmul(left, right, out=part)
                total += part

    def _by_group(self, weight: np.ndarray) -> np.ndarray:
        return weight.reshape(self.g.group, -1, self.g.height)

    def _flat_image(self, image: np.ndarray) -> np.ndarray:
        g = self.g
        return image.reshape(g.n, g.group, g.channels // g.group, -1)

    def _flat_map(self, maps: np.ndarray) -> np.ndarray:
        g = self.g
        return maps.reshape(g.n, g.group, g.maps // g.group, g.map_plane)
