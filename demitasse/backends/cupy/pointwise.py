"""The weight's gradient where every position of the map sees one element of the image."""

from __future__ import annotations

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.library.gemm import Product
from demitasse.backends.storage import array_dtype
from demitasse.backends.windows import ConvGeometry

__all__ = ["PointwiseGradient"]


class PointwiseGradient:
    """A product for each sample, read from image and map as they lie, and the sum of them.

    Args:
        engine: Runs it.
        geometry: Image, map, and a window of one element; one group.
        dtype: Of all arrays.

    Shapes: image (n, C, *spatial), maps (n, M, *spatial), weight (M, C, 1, ...).
    """

    def __init__(self, engine: Engine, geometry: ConvGeometry, dtype: str) -> None:
        self._engine, self._dtype, self._samples = engine, dtype, geometry.n
        self._sides = (geometry.maps, geometry.channels, geometry.map_plane)
        self._count = geometry.maps * geometry.channels
        most = max(
            1, engine.column_budget // max(1, self._count * np.dtype(array_dtype(dtype)).itemsize)
        )
        self._step = max(1, min(most, geometry.n))
        self._ones = engine.asarray(np.ones(self._step, array_dtype(dtype)))

    @staticmethod
    def pays(g: ConvGeometry) -> bool:
        """Return whether it moves less memory than to lay out image and map in the order of rows.

        That writes both of them; here, one weight is written for each sample.
        """
        if not g.window.is_pointwise or g.group != 1:
            return False
        return g.n <= 1 or g.maps * g.channels < (g.maps + g.channels) * g.map_plane

    def add(self, maps: Array, image: Array, total: Array) -> None:
        """Add the gradient to ``total``."""
        if self._samples <= 1:
            one = Product(
                self._dtype, *self._sides, transpose_b=True, accumulate=True, batch=self._samples
            )
            self._engine.multiply(one, maps, image, total)
            return
        maps, image = (array.reshape(self._samples, -1) for array in (maps, image))
        for first in range(0, self._samples, self._step):
            part = slice(first, min(first + self._step, self._samples))
            number = part.stop - first
            each = Product(self._dtype, *self._sides, transpose_b=True, batch=number)
            summed = Product(self._dtype, 1, self._count, number, accumulate=True)
            [weights] = self._engine.scratch(self._dtype, number * self._count)
            self._engine.multiply(each, maps[part], image[part], weights)
            self._engine.multiply(summed, self._ones[:number], weights, total)
