"""Windows on arrays: an image with zeros around it (its canvas), seen tap by tap.

What every tap of a window sees is one strided slice of the canvas. Columns (im2col) are these
slices side by side; adding columns back (col2im) is the transpose.

Source: Caffe, ``src/caffe/util/im2col.cpp``.
"""

from __future__ import annotations

import math
from functools import cached_property

from demitasse.backends.arrays import Array
from demitasse.backends.windows import Shape, Window
from demitasse.layers.base import Layer

__all__ = ["Canvas"]


class Canvas:
    """The padded image that the windows of one layer slide over.

    Args:
        layer: Makes the arrays.
        window: The window that slides.
        spatial: Size of the image.
        out: Number of output positions along each axis.
    """

    def __init__(self, layer: Layer, window: Window, spatial: Shape, out: Shape) -> None:
        self.layer, self.window, self.spatial, self.out = layer, window, spatial, out
        self.size = window.canvas(spatial, out)
        self._inside = (slice(None), slice(None), *window.inside(spatial))

    @cached_property
    def taps(self) -> list[Shape]:
        """The taps that see some of the image; the others see nothing but what is around it."""
        return self.window.taps_on(self.spatial, self.out)

    def lay(self, image: Array, around: float = 0) -> Array:
        """Return the canvas with ``image`` on it.

        Shapes: (N, C, *spatial) -> (N, C, *size).
        """
        if self.size == self.spatial:
            return image
        canvas = self.layer.full((*image.shape[:2], *self.size), around)
        canvas[self._inside] = image
        return canvas

    def blank(self, n: int, channels: int) -> Array:
        """Return a canvas of zeros. Shape: (n, channels, *size)."""
        return self.layer.zeros((n, channels, *self.size))

    def crop(self, canvas: Array) -> Array:
        """Return the image that lies on a canvas. Shapes: (N, C, *size) -> (N, C, *spatial)."""
        return canvas[self._inside]

    def at(self, tap: Shape) -> tuple[slice, ...]:
        """Return the index of what one tap sees: (N, C, *size) -> (N, C, *out)."""
        return (slice(None), slice(None), *self.window.reach(tap, self.out))

    def columns(self, image: Array) -> Array:
        """Return what each tap sees at each output position.

        Shapes: (N, C, *spatial) -> (N, C * taps, positions).
        """
        n, channels = image.shape[:2]
        rows = (n, channels * self.window.size, math.prod(self.out))
        if self.window.is_pointwise:
            return self.layer.xp.reshape(image, rows)
        canvas = self.lay(image)
        seen = [canvas[self.at(tap)] for tap in self.window.taps()]
        return self.layer.xp.reshape(self.layer.xp.stack(seen, axis=2), rows)

    def image(self, columns: Array) -> Array:
        """Add columns up where their taps lie: the transpose of :meth:`columns`.

        Shapes: (N, C * taps, positions) -> (N, C, *spatial).
        """
        xp, taps = self.layer.xp, self.window.size
        n, channels = columns.shape[0], columns.shape[1] // taps
        if self.window.is_pointwise:
            return xp.reshape(columns, (n, channels, *self.spatial))
        parts = xp.reshape(columns, (n, channels, taps, *self.out))
        canvas = self.blank(n, channels)
        for i, tap in enumerate(self.window.taps()):
            canvas[self.at(tap)] += parts[:, :, i, ...]
        return self.crop(canvas)
