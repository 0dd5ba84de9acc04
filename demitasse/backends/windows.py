"""Geometry of windows that slide over images, for layers and for all backends.

Integers, one for each spatial axis. Divisions round as Caffe's do.

Source: Caffe, ``src/caffe/layers/base_conv_layer.cpp``, ``conv_layer.cpp``, ``deconv_layer.cpp``,
``pooling_layer.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from demitasse.backends.ops import Conv, Deconv
from demitasse.errors import ErrorCode, ShapeError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """A window that slides over spatial axes.

    Attributes:
        kernel: Taps along each axis.
        stride: Elements from one output position to the next.
        pad: Elements added before each axis, and after it without ``after``.
        dilation: Elements from one tap to the next.
        after: Elements added after each axis where they differ from ``pad``, or None.
    """

    kernel: Shape
    stride: Shape
    pad: Shape
    dilation: Shape
    after: Shape | None = None

    @property
    def pads(self) -> Iterable[tuple[int, int]]:
        """Elements added before and after each axis."""
        return zip(self.pad, self.pad_after, strict=True)

    @property
    def pad_after(self) -> Shape:
        """Elements added after each axis."""
        return self.pad if self.after is None else self.after

    @property
    def given_pads(self) -> Shape | list[tuple[int, int]]:
        """The pads for messages: one for each axis, or two where they differ."""
        return self.pad if self.after is None else list(self.pads)

    @property
    def size(self) -> int:
        """Number of taps."""
        return math.prod(self.kernel)

    @property
    def extent(self) -> Shape:
        """Elements from the first tap to the last, both included."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def is_pointwise(self) -> bool:
        """True if every output position sees its own element alone."""
        return all(
            (k, s, p) == (1, 1, (0, 0))
            for k, s, p in zip(self.kernel, self.stride, self.pads, strict=True)
        )

    def taps(self) -> list[Shape]:
        """Return the index of every tap, the last axis fastest."""
        return list(product(*(range(k) for k in self.kernel)))

    def taps_on(self, spatial: Shape, out: Shape) -> list[Shape]:
        """Return the index of every tap that sees some of an image, not only what is around it.

        They are no more than the image has elements times the output positions, however large the
        window is. ``spatial`` is the size of the image, ``out`` the number of output positions.
        """
        axes = zip(spatial, out, self.kernel, self.stride, self.pad, self.dilation, strict=True)
        return list(product(*(_taps_along(*axis) for axis in axes)))

    def cropped(self, spatial: Shape, out: Shape) -> Window:
        """Return the window without outer taps, as many at either end, that see no image."""
        if self.after or 0 in self.dilation:  # taps in one place all see the image, or none does
            return self
        kernel: Shape = ()
        pad: Shape = ()
        axes = zip(spatial, out, self.kernel, self.stride, self.pad, self.dilation, strict=True)
        for n, places, taps, stride, before, step in axes:
            seen = _taps_along(n, places, taps, stride, before, step)
            outer = min(seen[0], taps - 1 - seen[-1], before // step) if seen else 0
            kernel, pad = (*kernel, taps - 2 * outer), (*pad, before - outer * step)
        return replace(self, kernel=kernel, pad=pad)

    def convolved(self, spatial: Shape) -> Shape:
        """Return the output size of a convolution; raise ShapeError if the window does not fit."""
        # C's division: towards zero, so a window that sticks out by less than a stride counts
        spans = zip(spatial, self.pads, self.extent, self.stride, strict=True)
        out = tuple(int((n + p + q - e) / s) + 1 for n, (p, q), e, s in spans)
        return self._some(out, spatial)

    def deconvolved(self, spatial: Shape) -> Shape:
        """Return the output size of a transposed convolution; ShapeError if nothing is left."""
        spans = zip(spatial, self.stride, self.extent, self.pads, strict=True)
        return self._some(tuple(s * (n - 1) + e - p - q for n, s, e, (p, q) in spans), spatial)

    def pooled(self, spatial: Shape, *, ceil: bool) -> Shape:
        """Return the output size of pooling; raise ShapeError if the window does not fit.

        With padding, a last window that would start beyond the image and its first pad is dropped.
        With ``ceil``, a last window that sticks out of the padded image counts.
        """
        out = []
        padded = any(before or after for before, after in self.pads)
        for n, k, s, (p, q) in zip(spatial, self.kernel, self.stride, self.pads, strict=True):
            span = n + p + q - k
            count = (-(-span // s) if ceil else span // s) + 1
            if padded:
                count -= (count - 1) * s >= n + p
                if (count - 1) * s >= n + p:
                    count = 0
            out.append(count)
        return self._some(tuple(out), spatial)

    def canvas(self, spatial: Shape, out: Shape) -> Shape:
        """Return the size of the padded image, so large that all windows lie in it."""
        needed = ((o - 1) * s + e for o, s, e in zip(out, self.stride, self.extent, strict=True))
        return tuple(
            max(n + p + q, room) for n, (p, q), room in zip(spatial, self.pads, needed, strict=True)
        )

    def divisors(self, spatial: Shape, out: Shape, *, pads: bool) -> np.ndarray:
        """Return the number of elements that the mean of each window counts; NaN for none.

        With ``pads``, pads count; elements beyond the pads do not. Shape: (*out), float64.
        """
        total = np.ones((), np.int64)
        for n, o, k, s, (p, q) in zip(
            spatial, out, self.kernel, self.stride, self.pads, strict=True
        ):
            low, high = (-p, n + q) if pads else (0, n)
            first = np.arange(o) * s - p
            count = np.minimum(first + k, high) - np.maximum(first, low)
            total = np.multiply.outer(total, count if pads else np.maximum(count, 0))
        # an empty window is 0 / 0; a divisor of NaN gives NaN without a warning
        return np.where(total == 0, math.nan, total)

    def inside(self, spatial: Shape) -> tuple[slice, ...]:
        """Return where an image of size ``spatial`` lies on its canvas."""
        return tuple(slice(p, p + n) for n, p in zip(spatial, self.pad, strict=True))

    def reach(self, tap: Shape, out: Shape) -> tuple[slice, ...]:
        """Return the elements of the canvas that one tap sees, one for each output position."""
        return tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, o, s in zip(tap, self.dilation, out, self.stride, strict=True)
        )

    def _some(self, out: Shape, given: Shape) -> Shape:
        if any(o <= 0 for o in out):
            message = (
                f"a window of {self.kernel} (stride {self.stride}, pad {self.given_pads}, dilation "
                f"{self.dilation}) on {given} gives a size of {out}; every axis must be above 0: "
                "use a larger input, a smaller kernel_size or more pad"
            )
            raise ShapeError(message, code=ErrorCode.OUT_OF_RANGE, field="kernel_size", got=out)
        return out


def _taps_along(n: int, out: int, kernel: int, stride: int, pad: int, dilation: int) -> list[int]:
    """Return the taps along one axis that see some of an image of ``n`` elements."""
    found: set[int] = set()
    for first in range(-pad, -pad + out * stride, stride):
        begin, end = -(first // dilation), -((first - n) // dilation)  # of taps at 0 and n or later
        found.update(range(max(begin, 0), min(end, kernel)))
        if len(found) == kernel:
            break
    return sorted(found)


@dataclass(frozen=True)
class ConvGeometry:
    """An image (n, C, *spatial), a map (n, M, *positions), and the window between them.

    A convolution's bottom is the image, and its top the map; a transposed convolution's bottom is
    the map, and its top the image. The weight is (M, C / group, *kernel) in both; C is ``channels``
    and M is ``maps``.
    """

    n: int
    group: int
    channels: int
    maps: int
    spatial: Shape
    positions: Shape
    window: Window

    @classmethod
    def of(cls, op: Conv) -> ConvGeometry:
        """Return the geometry of a convolution or a transposed convolution."""
        image, maps = (op.top, op.bottom) if isinstance(op, Deconv) else (op.bottom, op.top)
        return cls(
            n=math.prod(image[: op.axis]), group=op.group, channels=image[op.axis],
            maps=maps[op.axis], spatial=image[op.axis + 1 :], positions=maps[op.axis + 1 :],
            window=Window(op.kernel, op.stride, op.pad, op.dilation, op.after),
        )  # fmt: skip

    @property
    def image_plane(self) -> int:
        """Elements of one channel of an image."""
        return math.prod(self.spatial)

    @property
    def map_plane(self) -> int:
        """Elements of one channel of a map."""
        return math.prod(self.positions)

    @property
    def height(self) -> int:
        """Rows of the columns of one group: channels times taps."""
        return self.channels // self.group * self.window.size
