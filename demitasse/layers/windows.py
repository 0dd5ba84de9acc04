"""Sliding windows on images: im2col, col2im and the products of convolutions.

A padded image is an image with a border. One kernel offset of a window selects a strided slice of
the padded image at all output positions. Columns (im2col) are these slices side by side; col2im,
the transpose, adds columns back.

Source: Caffe, ``src/caffe/util/im2col.cpp``, ``src/caffe/layers/base_conv_layer.cpp``.
"""

import math
from collections.abc import Callable, Iterator
from functools import cached_property, partial

from demitasse.backends.arrays import Array
from demitasse.backends.windows import Shape, Window
from demitasse.io.proto import ConvolutionParameter, PoolingParameter
from demitasse.layers.base import Layer
from demitasse.layers.checks import conflict, out_of_range, wrong_count


class PaddedImage:
    """Image of size ``spatial`` with a border, for a window of ``out`` positions."""

    def __init__(self, layer: Layer, window: Window, spatial: Shape, out: Shape) -> None:
        self.layer, self.window, self.spatial, self.out = layer, window, spatial, out
        self.size = window.canvas(spatial, out)
        self._inside = (slice(None), slice(None), *window.inside(spatial))

    @cached_property
    def kernel_offsets(self) -> list[Shape]:
        """Kernel offsets whose slice overlaps the image; the other slices have border only."""
        return self.window.taps_on(self.spatial, self.out)

    def pad(self, image: Array, around: float = 0) -> Array:
        """Return the padded image. Shapes: (N, C, *spatial) -> (N, C, *size)."""
        if self.size == self.spatial:
            return image
        padded = self.layer.full((*image.shape[:2], *self.size), around)
        return self.layer.device.backend.set_at(padded, self._inside, image)

    def blank(self, n: int, channels: int) -> Array:
        """Return a padded image of zeros. Shape: (n, channels, *size)."""
        return self.layer.zeros((n, channels, *self.size))

    def crop(self, padded: Array) -> Array:
        """Return a padded image without its border. Shapes: (N, C, *size) -> (N, C, *spatial)."""
        return padded[self._inside]

    def slice_for(self, offset: Shape) -> tuple[slice, ...]:
        """Return the slice of one kernel offset: (N, C, *size) -> (N, C, *out)."""
        return (slice(None), slice(None), *self.window.reach(offset, self.out))

    def columns(self, image: Array) -> Array:
        """Return the columns (im2col): the values at each kernel offset and output position.

        Shapes: (N, C, *spatial) -> (N, C * kernel size, positions).
        """
        n, channels = image.shape[:2]
        rows = (n, channels * self.window.size, math.prod(self.out))
        if self.window.is_pointwise:
            return self.layer.xp.reshape(image, rows)
        padded = self.pad(image)
        seen = [padded[self.slice_for(offset)] for offset in self.window.taps()]
        return self.layer.xp.reshape(self.layer.xp.stack(seen, axis=2), rows)

    def image(self, columns: Array) -> Array:
        """Return the sum of columns in an image (col2im): the transpose of :meth:`columns`.

        Shapes: (N, C * kernel size, positions) -> (N, C, *spatial).
        """
        xp, size = self.layer.xp, self.window.size
        n, channels = columns.shape[0], columns.shape[1] // size
        if self.window.is_pointwise:
            return xp.reshape(columns, (n, channels, *self.spatial))
        parts = xp.reshape(columns, (n, channels, size, *self.out))
        padded, add_at = self.blank(n, channels), self.layer.device.backend.add_at
        for i, offset in enumerate(self.window.taps()):
            padded = add_at(padded, self.slice_for(offset), parts[:, :, i, ...])
        return self.crop(padded)


CHUNK = 1 << 24
"""Most elements of columns in memory, unless a single image needs more."""


class Correlation:
    """Products of an image, a map and a weight, in groups of channels.

    An image has C channels. A map has M channels, and one value for each position of the window on
    the image. Convolution computes maps from images, Deconvolution images from maps; the gradient
    of each is the other.

    Attributes:
        weight_shape: (M, C/group, *kernel).
    """

    def __init__(self, layer: Layer, window: Window, group: int, *, image: int, maps: int) -> None:
        self._layer, self._window, self._group = layer, window, group
        self._channels, self._maps = image, maps
        self._height = image // group * window.size  # rows of a group's columns
        self.weight_shape = (maps, image // group, *window.kernel)

    def fit(self, n: int, *, image: Shape, places: Shape) -> None:
        """Prepare for ``n`` images of a spatial size, and the positions of the window."""
        self._n, self._spatial, self._places = n, image, math.prod(places)
        self._padded = PaddedImage(self._layer, self._window, image, places)

    def image(self, values: Array) -> Array:
        """Return the values of a blob of images as (N, C, *spatial)."""
        return self._layer.xp.reshape(values, (self._n, self._channels, *self._spatial))

    def map(self, values: Array) -> Array:
        """Return the values of a blob of maps as (N, M, places)."""
        return self._layer.xp.reshape(values, (self._n, self._maps, self._places))

    def to_map(self, image: Array, weight: Array) -> Array:
        """Return the convolution of an image with the weight.

        Shapes: (N, C, *spatial), ``weight_shape`` -> (N, M, places).
        """
        xp, weight = self._layer.xp, self._by_rows(weight)
        parts = [xp.matmul(weight, self._columns(image[part, ...])) for part in self._chunks()]
        return self.map(self._concatenated(parts))

    def to_image(self, maps: Array, weight: Array) -> Array:
        """Return the transposed convolution of a map with the weight.

        Shapes: (N, M, places), ``weight_shape`` -> (N, C, *spatial).
        """
        xp = self._layer.xp
        weight = xp.matrix_transpose(self._by_rows(weight))  # (1, G, C/G offsets, M/G)
        parts = []
        for part in self._chunks():
            columns = xp.matmul(weight, self._by_group(maps[part, ...]))
            rows = (columns.shape[0], self._channels * self._window.size, self._places)
            parts.append(self._padded.image(xp.reshape(columns, rows)))
        return self._concatenated(parts)

    def weight_gradient(self, image: Array, maps: Array) -> Array:
        """Return the sum over images and places of map times columns.

        Shapes: (N, C, *spatial), (N, M, places) -> ``weight_shape``.
        """
        xp, group, rows = self._layer.xp, self._group, self._maps // self._group
        total = self._layer.zeros((group, rows, self._height))
        for part in self._chunks():
            # all images of a part in one product: (G, M/G, N places) x (G, N places, C/G offsets)
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
        return self._layer.xp.reshape(self._padded.columns(image), shape)

    def _by_group(self, maps: Array) -> Array:
        shape = (maps.shape[0], self._group, self._maps // self._group, self._places)
        return self._layer.xp.reshape(maps, shape)

    def _chunks(self) -> Iterator[slice]:
        per_image = self._channels * self._window.size * self._places
        step = max(1, CHUNK // per_image)
        for first in range(0, max(1, self._n), step):
            yield slice(first, min(first + step, self._n))

    def _concatenated(self, parts: list[Array]) -> Array:
        return parts[0] if len(parts) == 1 else self._layer.xp.concat(parts, axis=0)


def convolution_window(param: ConvolutionParameter, axes: int) -> Window:
    """Read the window of a convolution; raise ConfigError for fields that contradict or are 0."""
    path = "convolution_param"
    kernel = sides(param, path, "kernel", axes, partial(_caffe, param, "kernel", None))
    stride = sides(param, path, "stride", axes, partial(_caffe, param, "stride", 1))
    pad, after = pads(param, path, axes, partial(_caffe, param, "pad", 0))
    dilation = _caffe(param, "dilation", 1, axes)
    for name, values in (("kernel_size", kernel), ("stride", stride)):
        if min(values, default=1) <= 0:
            raise out_of_range(f"convolution_param.{name}", values, "numbers above 0")
    return Window(kernel, stride, pad, dilation, after)


DEPTH = {"kernel": "kernel_depth", "stride": "temporal_stride", "pad": "temporal_pad"}
"""C3D's fields of the first of three axes; Caffe's fields are then of the other two."""

PAD_SIDES = ("pad_t", "pad_l", "pad_b", "pad_r")
"""Synopsys Caffe's pads: before and after rows and columns."""


Param = ConvolutionParameter | PoolingParameter


def sides(param: Param, path: str, name: str, axes: int, caffe: Callable[[int], Shape]) -> Shape:
    """Return kernel, stride or pad (``name``), one value for each spatial axis.

    ``path`` is the name of the message's field. ``caffe`` reads Caffe's own fields for a number of
    axes; ConfigError if fields of two forks are given, or not one value for each axis.
    """
    depth = [field for field in DEPTH.values() if param.HasField(field)]
    if depth:
        if axes != len(DEPTH):
            message = f"{path}.{depth[0]} is for 3 spatial axes, there are {axes}"
            raise conflict(f"{path}.{depth[0]}", message)
        return (getattr(param, DEPTH[name]), *caffe(axes - 1))
    square = "kernel_size" if name == "kernel" else name
    listed = {
        f"{square}_3d": list(getattr(param, f"{square}_3d", ())),
        f"{name}_shape": list(getattr(param, f"{name}_shape").dim),
    }
    given = [field for field, values in listed.items() if values]
    if not given:
        return caffe(axes)
    plain = [
        field
        for field in (square, f"{name}_h", f"{name}_w")
        if field in {descriptor.name for descriptor, _ in param.ListFields()}
    ]
    if len(given + plain) > 1:
        message = f"{path} has {' and '.join(given + plain)}; give one of these"
        raise conflict(f"{path}.{given[0]}", message)
    values = listed[given[0]]
    if len(values) not in {1, axes}:
        expected = f"1, or {axes}, one for each spatial axis"
        raise wrong_count(f"{path}.{given[0]}", len(values), expected)
    return tuple(values) if len(values) == axes else tuple(values) * axes


def pads(
    param: Param, path: str, axes: int, caffe: Callable[[int], Shape]
) -> tuple[Shape, Shape | None]:
    """Return the pads before each axis, and those after it where they differ; see ``sides``."""
    values = [getattr(param, field) for field in PAD_SIDES]
    pad = sides(param, path, "pad", axes, caffe)
    if min(pad, default=0) < 0:
        raise out_of_range(f"{path}.pad", pad, "0 or more")
    if not any(values):
        return pad, None
    field = next(name for name, value in zip(PAD_SIDES, values, strict=True) if value)
    if min(values) < 0:
        raise out_of_range(f"{path}.{field}", min(values), "0 or more")
    if any(pad):
        message = f"{path} has {field} and other pads, {pad}; give one of these"
        raise conflict(f"{path}.{field}", message)
    if axes != len(values) // 2:
        message = f"{path}.{field} is for 2 spatial axes, there are {axes}"
        raise conflict(f"{path}.{field}", message)
    before, after = tuple(values[:axes]), tuple(values[axes:])
    return before, after if after != before else None


def _caffe(param: ConvolutionParameter, name: str, default: int | None, axes: int) -> Shape:
    """Return one value for each axis from Caffe's own fields."""
    height, width = f"{name}_h", f"{name}_w"
    field = "kernel_size" if name == "kernel" else name
    listed = getattr(param, field)
    if param.HasField(height) or param.HasField(width):
        if axes != 2:
            message = (
                f"convolution_param.{height} and {width} are for 2 spatial axes, the bottom has "
                f"{axes}; give {name} once per axis instead"
            )
            raise conflict(f"convolution_param.{height}", message)
        if listed:
            message = f"convolution_param has both {field} and {height} or {width}; remove one"
            raise conflict(f"convolution_param.{field}", message)
        return getattr(param, height), getattr(param, width)
    if not listed and default is not None:
        return (default,) * axes
    if len(listed) not in {1, axes}:
        expected = f"1, or {axes}, one for each spatial axis"
        raise wrong_count(f"convolution_param.{field}", len(listed), expected)
    return tuple(listed) * (axes if len(listed) == 1 else 1)
