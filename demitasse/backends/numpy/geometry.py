"""Sizes of a convolution, whichever of image and map is the bottom."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Geometry", "Shape"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """An image (n, C, *spatial), a map (n, M, *places), and the window between them."""

    n: int
    group: int
    image_channels: int
    map_channels: int
    spatial: Shape
    places: Shape
    kernel: Shape
    stride: Shape
    pad: Shape
    dilation: Shape

    @property
    def plane(self) -> int:
        """Number of places."""
        return math.prod(self.places)

    @property
    def height(self) -> int:
        """Rows of the columns of one group."""
        return self.image_channels // self.group * math.prod(self.kernel)

    @property
    def pointwise(self) -> bool:
        """Whether every place sees exactly its own element."""
        return set(self.kernel) == {1} == set(self.stride) and not any(self.pad)

    @property
    def canvas(self) -> Shape:
        """Size of the padded image on which all windows lie completely."""
        needed = (
            (o - 1) * s + d * (k - 1) + 1
            for o, s, d, k in zip(self.places, self.stride, self.dilation, self.kernel, strict=True)
        )
        return tuple(
            max(n + 2 * p, room) for n, p, room in zip(self.spatial, self.pad, needed, strict=True)
        )
