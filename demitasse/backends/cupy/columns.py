"""Windows of a chunk of samples as columns of a matrix, and back: what convolution multiplies.

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

from demitasse.backends.base import Array
from demitasse.backends.cupy.library.engine import Engine, Launch
from demitasse.backends.cupy.library.gemm import Product

__all__ = ["Chunk", "Windows"]


@dataclass(frozen=True)
class Windows:
    """A window that slides over images: the numbers that every chunk has in common.

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
        """Whether every place sees its own element alone, so that an image is its columns."""
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
        windows: The window.
        samples: How many samples.
        geometry: ``windows.geometry()`` on the device; read where there are over two axes.
    """

    def __init__(self, engine: Engine, windows: Windows, samples: int, geometry: Array) -> None:
        self.engine, self.windows, self.samples, self.geometry = engine, windows, samples, geometry
        w = windows
        self.length = samples * w.places
        self.alone = samples == 1
        """One sample: its map has the order of rows already."""
        rows, columns, many = w.maps // w.group, w.height // w.group, w.group
        self.to_rows = Product(w.dtype, rows, self.length, columns, batch=many)
        self.to_columns = Product(w.dtype, columns, self.length, rows, transpose_a=True, batch=many)
        self.to_weight = Product(
            w.dtype, rows, columns, self.length, transpose_b=True, accumulate=True, batch=many
        )

    def scratch(self) -> tuple[Array, Array]:
        """Return memory for columns (C * taps, length) and rows (M, length)."""
        w = self.windows
        columns, rows = self.engine.scratch(w.dtype, w.height * self.length, w.maps * self.length)
        return columns, rows

    def unfold(self, image: Array, columns: Array) -> None:
        """Write what each tap sees of an image into columns."""
        self._windowed(self._unfold, image, columns)

    def fold(self, columns: Array, image: Array) -> None:
        """Add columns up into an image."""
        self._windowed(self._fold, columns, image)

    def _windowed(self, kernel: Launch, source: Array, target: Array) -> None:
        if self.windows.two_axes() is None:
            kernel(source, target, self.geometry)
        else:
            kernel(source, target)

    @cached_property
    def _unfold(self) -> Launch:
        return self._kernel("im2col", self.windows.channels * self.length)

    @cached_property
    def _fold(self) -> Launch:
        return self._kernel("col2im", self.samples * self.windows.channels * self.windows.plane)

    def _kernel(self, name: str, count: int) -> Launch:
        w, flat = self.windows, self.windows.two_axes()
        reach = max(w.height * self.length, self.samples * w.channels * w.plane)
        head = (self.samples, w.channels)
        if flat is not None:
            return self.engine.each("conv", name, w.dtype, count, *head, *flat, reach=reach)
        numbers = (*head, len(w.size), w.taps, w.places, w.plane)
        return self.engine.each("conv", f"{name}_nd", w.dtype, count, *numbers, reach=reach)

    @cached_property
    def gather(self) -> Launch:
        """Kernel: a map's samples -> rows."""
        w = self.windows
        numbers = (self.samples, w.maps, w.places)
        return self.engine.each("conv", "samples_to_rows", w.dtype, w.maps * self.length, *numbers)

    @cached_property
    def scatter(self) -> Launch:
        """Kernel: rows -> a map's samples."""
        w = self.windows
        numbers = (self.samples, w.maps, w.places)
        return self.engine.each("conv", "rows_to_samples", w.dtype, w.maps * self.length, *numbers)

    @cached_property
    def scatter_with_bias(self) -> Launch:
        """Kernel: rows, bias -> a map's samples."""
        w = self.windows
        numbers = (self.samples, w.maps, w.places)
        return self.engine.each(
            "conv", "rows_to_samples_with_bias", w.dtype, w.maps * self.length, *numbers
        )

    @cached_property
    def add_bias(self) -> Launch:
        """Kernel: adds a bias to a map's samples."""
        w = self.windows
        count = w.maps * self.length
        return self.engine.each("conv", "add_bias", w.dtype, count, w.maps, w.places)
