"""im2col and col2im: images as the columns of a matrix, which convolution multiplies, and back.

An *image* (N, C, *spatial) and a *map* (N, M, *positions) are connected by a weight
(M, C / group, *kernel). As a matrix the image becomes columns (C * taps, N * positions), the map
becomes rows (M, N * positions); the groups are blocks of either, so that one batched product does
them all.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import Engine, Launch
from demitasse.backends.cupy.library.gemm import Product
from demitasse.backends.windows import ConvGeometry

__all__ = ["Chunk", "any_axes"]


def two_axes(g: ConvGeometry) -> tuple[int, ...] | None:
    """Return size, kernel, ... for height and width; one axis is a width; None for more."""
    missing = 2 - len(g.spatial)
    if missing < 0:
        return None
    w = g.window
    fields = (
        (g.spatial, 1), (w.kernel, 1), (w.stride, 1), (w.pad, 0), (w.dilation, 1), (g.positions, 1),
    )  # fmt: skip
    return tuple(n for field, neutral in fields for n in ((neutral,) * missing + field))


def any_axes(g: ConvGeometry) -> np.ndarray:
    """Return size, kernel, stride, pad, dilation and positions. Shape: (6, axes), int32."""
    w = g.window
    return np.array((g.spatial, w.kernel, w.stride, w.pad, w.dilation, g.positions), np.int32)


class Chunk:
    """The kernels and products for some samples at once.

    Args:
        engine: Runs them.
        geometry: Image, map and window.
        dtype: Of all arrays.
        samples: How many samples.
        axes: ``any_axes(geometry)`` on the device, for kernels of more than two axes.
    """

    def __init__(
        self, engine: Engine, geometry: ConvGeometry, dtype: str, samples: int, axes: Array
    ) -> None:
        self.engine, self.g, self.dtype, self.samples = engine, geometry, dtype, samples
        self._axes, self._flat = axes, two_axes(geometry)
        g = geometry
        self.height = g.group * g.height
        self.length = samples * g.map_plane
        self.alone = samples == 1
        """True if it is one sample: its map is in the order of rows already."""
        rows, columns, many = g.maps // g.group, g.height, g.group
        self.to_rows = Product(dtype, rows, self.length, columns, batch=many)
        self.to_columns = Product(dtype, columns, self.length, rows, transpose_a=True, batch=many)
        self.to_weight = Product(
            dtype, rows, columns, self.length, transpose_b=True, accumulate=True, batch=many
        )

    def scratch(self) -> tuple[Array, Array]:
        """Return memory for columns (C * taps, length) and rows (M, length)."""
        sizes = self.height * self.length, self.g.maps * self.length
        columns, rows = self.engine.scratch(self.dtype, *sizes)
        return columns, rows

    def unfold(self, image: Array, columns: Array) -> None:
        """Write an image's columns (im2col)."""
        self._launch(self._unfold, image, columns)

    def fold(self, columns: Array, image: Array) -> None:
        """Add columns up to an image (col2im)."""
        self._launch(self._fold, columns, image)

    def _launch(self, kernel: Launch, source: Array, target: Array) -> None:
        if self._flat is None:
            kernel(source, target, self._axes)
        else:
            kernel(source, target)

    @cached_property
    def _unfold(self) -> Launch:
        return self._kernel("im2col", self.g.channels * self.length)

    @cached_property
    def _fold(self) -> Launch:
        return self._kernel("col2im", self.samples * self.g.channels * self.g.image_plane)

    def _kernel(self, name: str, count: int) -> Launch:
        g, flat = self.g, self._flat
        reach = max(self.height * self.length, self.samples * g.channels * g.image_plane)
        head = (self.samples, g.channels)
        if flat is not None:
            return self.engine.each("conv", name, self.dtype, count, *head, *flat, reach=reach)
        numbers = (*head, len(g.spatial), g.window.size, g.map_plane, g.image_plane)
        return self.engine.each("conv", f"{name}_nd", self.dtype, count, *numbers, reach=reach)

    @cached_property
    def gather(self) -> Launch:
        """Kernel: a map's samples -> rows."""
        g = self.g
        numbers = (self.samples, g.maps, g.map_plane)
        return self.engine.each(
            "conv", "samples_to_rows", self.dtype, g.maps * self.length, *numbers
        )

    @cached_property
    def scatter(self) -> Launch:
        """Kernel: rows -> a map's samples."""
        g = self.g
        numbers = (self.samples, g.maps, g.map_plane)
        return self.engine.each(
            "conv", "rows_to_samples", self.dtype, g.maps * self.length, *numbers
        )

    @cached_property
    def scatter_with_bias(self) -> Launch:
        """Kernel: rows, bias -> a map's samples."""
        return self._between("rows_to_samples_with_bias")

    @cached_property
    def add_bias(self) -> Launch:
        """Kernel: adds a bias to a map's samples."""
        g = self.g
        count = g.maps * self.length
        return self.engine.packs("conv", "add_bias", self.dtype, count, g.maps, g.map_plane)

    def _between(self, name: str) -> Launch:
        """Return a kernel that goes through all elements of a map's samples."""
        numbers = (self.samples, self.g.maps, self.g.map_plane)
        return self.engine.each("conv", name, self.dtype, self.g.maps * self.length, *numbers)
