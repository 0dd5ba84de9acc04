"""Geometry of sliding windows: what Convolution, Deconvolution, Im2col, Pooling and SPP share.

Pure integers, one entry for each spatial axis. Divisions round as Caffe's do.

Source: Caffe, ``src/caffe/layers/base_conv_layer.cpp``, ``conv_layer.cpp``, ``deconv_layer.cpp``,
``pooling_layer.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from demitasse.errors import ConfigError, ShapeError
from demitasse.proto import ConvolutionParameter

__all__ = ["Shape", "Window", "convolution_window"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """A window that slides over spatial axes.

    Attributes:
        kernel: Taps along each axis.
        stride: Elements from one place to the next.
        pad: Elements added before and after each axis.
        dilation: Elements from one tap to the next.
    """

    kernel: Shape
    stride: Shape
    pad: Shape
    dilation: Shape

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
        """Whether every place sees exactly its own element."""
        return all(
            (k, s, p) == (1, 1, 0)
            for k, s, p in zip(self.kernel, self.stride, self.pad, strict=True)
        )

    def taps(self) -> list[Shape]:
        """Return the index of every tap, the last axis fastest."""
        return list(product(*(range(k) for k in self.kernel)))

    def places(self, spatial: Shape) -> Shape:
        """Return how many places a convolution has along each axis.

        Raises:
            ShapeError: The window does not fit.
        """
        # C's division: towards zero, so a window that sticks out by less than a stride has a place
        spans = zip(spatial, self.pad, self.extent, self.stride, strict=True)
        out = tuple(int((n + 2 * p - e) / s) + 1 for n, p, e, s in spans)
        return self._some(out, spatial)

    def covered(self, places: Shape) -> Shape:
        """Return the size of the image that a transposed convolution of ``places`` makes.

        Raises:
            ShapeError: Nothing is left between the pads.
        """
        spans = zip(places, self.stride, self.extent, self.pad, strict=True)
        return self._some(tuple(s * (n - 1) + e - 2 * p for n, s, e, p in spans), places)

    def pooled(self, spatial: Shape, *, ceil: bool) -> Shape:
        """Return how many places pooling has along each axis.

        With padding, a last window that would start beyond the image and its first pad is dropped.

        Raises:
            ShapeError: The window does not fit.
        """
        out = []
        for n, k, s, p in zip(spatial, self.kernel, self.stride, self.pad, strict=True):
            span = n + 2 * p - k
            count = (-(-span // s) if ceil else span // s) + 1
            if any(self.pad):
                count -= (count - 1) * s >= n + p
                if (count - 1) * s >= n + p:
                    count = 0
            out.append(count)
        return self._some(tuple(out), spatial)

    def canvas(self, spatial: Shape, out: Shape) -> Shape:
        """Return the size of the padded image on which all windows lie completely."""
        needed = ((o - 1) * s + e for o, s, e in zip(out, self.stride, self.extent, strict=True))
        return tuple(
            max(n + 2 * p, room) for n, p, room in zip(spatial, self.pad, needed, strict=True)
        )

    def inside(self, spatial: Shape) -> tuple[slice, ...]:
        """Return where the image lies on the canvas."""
        return tuple(slice(p, p + n) for n, p in zip(spatial, self.pad, strict=True))

    def reach(self, tap: Shape, out: Shape) -> tuple[slice, ...]:
        """Return the elements of the canvas that one tap sees, one for each place."""
        return tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, o, s in zip(tap, self.dilation, out, self.stride, strict=True)
        )

    def _some(self, out: Shape, given: Shape) -> Shape:
        if any(o <= 0 for o in out):
            message = (
                f"a window of {self.kernel} (stride {self.stride}, pad {self.pad}, dilation "
                f"{self.dilation}) on {given} gives a size of {out}; every axis must be above 0: "
                "use a larger input, a smaller kernel_size or more pad"
            )
            raise ShapeError(message)
        return out


def convolution_window(param: ConvolutionParameter, axes: int) -> Window:
    """Read the window of a convolution over ``axes`` spatial axes.

    Raises:
        ConfigError: A field is given in two ways, not once per axis, or 0 where it cannot be.
    """
    kernel = _per_axis(
        axes, "kernel", "kernel_size", param.kernel_size, _hw(param, "kernel", axes), None
    )
    stride = _per_axis(axes, "stride", "stride", param.stride, _hw(param, "stride", axes), 1)
    pad = _per_axis(axes, "pad", "pad", param.pad, _hw(param, "pad", axes), 0)
    dilation = _per_axis(axes, "dilation", "dilation", param.dilation, None, 1)
    for name, values in (("kernel_size", kernel), ("stride", stride)):
        if min(values, default=1) <= 0:
            message = f"convolution_param.{name} must be above 0, it is {values}"
            raise ConfigError(message)
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
        raise ConfigError(message)
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
            message = f"convolution_param has both {listed_name} and {name}_h or {name}_w; use one"
            raise ConfigError(message)
        return hw
    if not listed and default is not None:
        return (default,) * axes
    if len(listed) == 1:
        return (listed[0],) * axes
    if len(listed) != axes:
        message = (
            f"convolution_param.{listed_name} is given {len(listed)} times; give it once, "
            f"or once for each of the {axes} spatial axes"
        )
        raise ConfigError(message)
    return tuple(listed)
