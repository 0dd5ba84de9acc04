"""im2col and col2im: images as the columns of a matrix, which convolution multiplies, and back.

An *image* (N, C, *size) and a *map* (N, M, *places) are connected by a weight
(M, C / group, *kernel). As a matrix the image becomes columns (C * taps, N * places), the map
becomes rows (M, N * places); the groups are blocks of either, so that one batched product does them
all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import Engine, Launch
from demitasse.backends.cupy.library.gemm import Product

__all__ = ["Chunk", "SlidingWindow"]


@dataclass(frozen=True)
class SlidingWindow:
    """A window that slides over an image, one step for each element of the map.

    Attributes:
        channels: C, of the image.
        maps: M, channels of the map.
        size: Spatial axes of the image.
        out: Spatial axes of the map.
    """

    dtype: str
    group: int
    channels: int
    maps: int
    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def plane(self) -> int:
        """Elements of one channel of an image."""
        return math.prod(self.size)

    @property
    def places(self) -> int:
        """Elements of one channel of a map."""
        return math.prod(self.out)

    @property
    def taps(self) -> int:
        """Elements of the window in one channel."""
        return math.prod(self.kernel)

    @property
    def height(self) -> int:
        """Height of the columns of all groups: C * taps."""
        return self.channels * self.taps

    @property
    def is_pointwise(self) -> bool:
        """Whether each element of the map sees one element of each channel, at its own position.

        The image is its own columns then.
        """
        return all(
            (k, s, p) == (1, 1, 0)
            for k, s, p in zip(self.kernel, self.stride, self.pad, strict=True)
        )

    @property
    def sample_bytes(self) -> int:
        """Memory for columns and rows of one sample."""
        return (self.height + self.maps) * self.places * np.dtype(self.dtype).itemsize

    def two_axes(self) -> tuple[int, ...] | None:
        """Return size, kernel, ... for height and width; one axis is a width; None for more."""
        missing = 2 - len(self.size)
        if missing < 0:
            return None
        fields = (
            (self.size, 1),
            (self.kernel, 1),
            (self.stride, 1),
            (self.pad, 0),
            (self.dilation, 1),
            (self.out, 1),
        )
        return tuple(n for field, neutral in fields for n in ((neutral,) * missing + field))

    def geometry(self) -> np.ndarray:
        """Return size, kernel, stride, pad, dilation and out. Shape: (6, axes), int32."""
        rows = (self.size, self.kernel, self.stride, self.pad, self.dilation, self.out)
        return np.array(rows, np.int32)


class Chunk:
    """The kernels and products for some samples at once.

    Args:
        engine: Runs them.
        window: The window.
        samples: How many samples.
        geometry: ``window.geometry()`` on the device, for kernels of more than two axes.
    """

    def __init__(
        self, engine: Engine, window: SlidingWindow, samples: int, geometry: Array
    ) -> None:
        self.engine, self.window, self.samples, self.geometry = engine, window, samples, geometry
        w = window
        self.length = samples * w.places
        self.alone = samples == 1
        """Whether it is one sample: its map is in the order of rows already."""
        rows, columns, many = w.maps // w.group, w.height // w.group, w.group
        self.to_rows = Product(w.dtype, rows, self.length, columns, batch=many)
        self.to_columns = Product(w.dtype, columns, self.length, rows, transpose_a=True, batch=many)
        self.to_weight = Product(
            w.dtype, rows, columns, self.length, transpose_b=True, accumulate=True, batch=many
        )

    def scratch(self) -> tuple[Array, Array]:
        """Return memory for columns (C * taps, length) and rows (M, length)."""
        w = self.window
        columns, rows = self.engine.scratch(w.dtype, w.height * self.length, w.maps * self.length)
        return columns, rows

    def unfold(self, image: Array, columns: Array) -> None:
        """Write an image's columns (im2col)."""
        self._launch(self._unfold, image, columns)

    def fold(self, columns: Array, image: Array) -> None:
        """Add columns up to an image (col2im)."""
        self._launch(self._fold, columns, image)

    def _launch(self, kernel: Launch, source: Array, target: Array) -> None:
        if self.window.two_axes() is None:
            kernel(source, target, self.geometry)
        else:
            kernel(source, target)

    @cached_property
    def _unfold(self) -> Launch:
        return self._kernel("im2col", self.window.channels * self.length)

    @cached_property
    def _fold(self) -> Launch:
        return self._kernel("col2im", self.samples * self.window.channels * self.window.plane)

    def _kernel(self, name: str, count: int) -> Launch:
        w, flat = self.window, self.window.two_axes()
        reach = max(w.height * self.length, self.samples * w.channels * w.plane)
        head = (self.samples, w.channels)
        if flat is not None:
            return self.engine.each("conv", name, w.dtype, count, *head, *flat, reach=reach)
        numbers = (*head, len(w.size), w.taps, w.places, w.plane)
        return self.engine.each("conv", f"{name}_nd", w.dtype, count, *numbers, reach=reach)

    @cached_property
    def gather(self) -> Launch:
        """Kernel: a map's samples -> rows."""
        w = self.window
        numbers = (self.samples, w.maps, w.places)
        return self.engine.each("conv", "samples_to_rows", w.dtype, w.maps * self.length, *numbers)

    @cached_property
    def scatter(self) -> Launch:
        """Kernel: rows -> a map's samples."""
        w = self.window
        numbers = (self.samples, w.maps, w.places)
        return self.engine.each("conv", "rows_to_samples", w.dtype, w.maps * self.length, *numbers)

    @cached_property
    def scatter_with_bias(self) -> Launch:
        """Kernel: rows, bias -> a map's samples."""
        w = self.window
        numbers = (self.samples, w.maps, w.places)
        return self.engine.each(
            "conv", "rows_to_samples_with_bias", w.dtype, w.maps * self.length, *numbers
        )

    @cached_property
    def add_bias(self) -> Launch:
        """Kernel: adds a bias to a map's samples."""
        w = self.window
        count = w.maps * self.length
        return self.engine.each("conv", "add_bias", w.dtype, count, w.maps, w.places)
