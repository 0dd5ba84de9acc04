"""Concat: bottoms side by side along one axis."""

from demitasse.backends import ops
from demitasse.blob import Blob
from demitasse.layers.base import AtLeast, Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import legacy_axis, shape_mismatch
from demitasse.layers.registry import register_layer


@register_layer("Concat")
class Concat(Layer):
    """Join bottoms along ``axis`` (formerly ``concat_dim``); a single bottom is shared, not copied.

    Source: Caffe, ``src/caffe/layers/concat_layer.cpp``.
    Shapes: bottoms equal except on the axis -> top with the sum of that axis.

    Raises:
        ConfigError: Both ``axis`` and ``concat_dim`` are given.
        ShapeError: There is no such axis, or the bottoms differ elsewhere.
    """

    bottoms = AtLeast(1)
    tops = Exactly(1)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        self.axis = legacy_axis(self.param.concat_param, "concat_dim", bottom[0])
        shape = list(bottom[0].shape)
        shape[self.axis] = 0
        for blob in bottom:
            shape[self.axis] += self._size(blob, bottom[0].shape)
        top[0].reshape(shape)
        self.is_alias = len(bottom) == 1 and self.uses_op
        if len(bottom) == 1:
            top[0].share_data(bottom[0])
            top[0].share_diff(bottom[0])
            return
        self.op = ops.Concat(self.dtype, tuple(blob.shape for blob in bottom), self.axis)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        if len(bottom) == 1:
            top[0].share_data(bottom[0])
        else:
            top[0].write(self.xp.concat([blob.read() for blob in bottom], axis=self.axis))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if len(bottom) == 1:
            return  # the gradient is shared
        dy = top[0].read_diff()
        index = [slice(None)] * len(dy.shape)
        first = 0
        for blob, wanted in zip(bottom, propagate_down, strict=True):
            last = first + blob.shape[self.axis]
            index[self.axis] = slice(first, last)
            if wanted:
                blob.write_diff(dy[tuple(index)])
            first = last

    def _size(self, blob: Blob, first: tuple[int, ...]) -> int:
        shape = blob.shape
        pairs = enumerate(zip(shape, first, strict=False))
        if len(shape) != len(first) or any(a != b for i, (a, b) in pairs if i != self.axis):
            message = (
                f"bottoms must be equal except on axis {self.axis}; the first is {first}, "
                f"{blob.name!r} is {shape}"
            )
            raise shape_mismatch(message, blob=blob.name, got=shape, expected=first)
        return shape[self.axis]
