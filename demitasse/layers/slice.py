"""Slice: cut a bottom along one axis."""

from itertools import pairwise

from demitasse.backends import ops
from demitasse.layers.base import AtLeast, Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import (
    legacy_axis,
    no_such_axis,
    out_of_range,
    shape_mismatch,
    wrong_count,
)
from demitasse.layers.registry import register_layer


@register_layer("Slice")
class Slice(Layer):
    """Cut along ``axis`` (formerly ``slice_dim``), at each ``slice_point`` or into equal parts.

    A single top is shared with the bottom, not copied.

    Source: Caffe, ``src/caffe/layers/slice_layer.cpp``.
    Shapes: bottom any -> tops equal to it except on the axis, where they add up to it.

    Raises:
        ConfigError: ``slice_point`` is not given once less than there are tops, or does not grow,
            or both ``axis`` and ``slice_dim`` are given.
        ShapeError: There is no such axis, it has too few elements, or cannot be cut into equal
            parts.
    """

    bottoms = Exactly(1)
    tops = AtLeast(1)
    graph_capturable = True

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.slice_param
        self.axis = legacy_axis(p, "slice_dim", bottom[0])
        size = bottom[0].shape[self.axis]
        self.ends = self._ends(list(p.slice_point), size, len(top))
        shape = list(bottom[0].shape)
        for blob, (first, last) in zip(top, pairwise(self.ends), strict=True):
            shape[self.axis] = last - first
            blob.reshape(shape)
        self.is_alias = len(top) == 1 and self.uses_op
        if len(top) == 1:
            top[0].share_data(bottom[0])
            top[0].share_diff(bottom[0])
            return
        self.op = ops.Slice(self.dtype, bottom[0].shape, self.axis, tuple(self.ends))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        if len(top) == 1:
            top[0].share_data(bottom[0])
            return
        x = bottom[0].read()
        index = [slice(None)] * len(x.shape)
        for blob, (first, last) in zip(top, pairwise(self.ends), strict=True):
            index[self.axis] = slice(first, last)
            blob.write(x[tuple(index)])

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0] and len(top) > 1:  # a single top shares its gradient
            parts = [blob.read_diff() for blob in top]
            bottom[0].write_diff(self.xp.concat(parts, axis=self.axis))

    def _ends(self, points: list[int], size: int, tops: int) -> list[int]:
        """Return the ends of the parts, from 0 to ``size``."""
        if not points:
            if size % tops:
                message = f"{size} elements of axis {self.axis} do not divide into {tops} tops"
                raise shape_mismatch(message, axis=self.axis, got=size)
            return [size // tops * i for i in range(tops + 1)]
        if len(points) != tops - 1:
            expected = f"{tops - 1}, one less than there are tops"
            raise wrong_count("slice_param.slice_point", len(points), expected)
        if any(b <= a for a, b in pairwise([0, *points])):
            raise out_of_range("slice_param.slice_point", points, "growing numbers above 0")
        if points[-1] >= size:
            message = (
                f"slice_point {points[-1]} leaves nothing of the {size} elements of axis "
                f"{self.axis} for the last top"
            )
            raise no_such_axis(message, field="slice_param.slice_point", got=points[-1])
        return [0, *points, size]
