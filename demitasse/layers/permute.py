"""Permute: the axes of a blob in another order.

Source: SSD (weiliu89/caffe), ``src/caffe/layers/permute_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import wrong_shapes
from demitasse.layers.registry import register

__all__ = ["Permute"]


@register("Permute")
class Permute(Layer):
    """Put the axes named by ``order`` first, the others after them in their own order.

    Compared with OpenCV's output.

    Shapes: bottom (d0, d1, ...) -> top (d[order[0]], d[order[1]], ...).

    Raises:
        ConfigError: An axis is named twice.
        ShapeError: The bottom does not have an axis, or now has another number of them.
        NetError: The top is the bottom.
    """

    bottoms = tops = Exactly(1)
    repeats = True
    in_place = False

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        named, axes = list(self.param.permute_param.order), bottom[0].num_axes
        if len(set(named)) != len(named):
            message = f"permute_param.order names an axis twice: {named}"
            raise ConfigError(
                message, code=ErrorCode.DUPLICATE, field="permute_param.order", got=named
            )
        if any(axis >= axes for axis in named):
            message = f"permute_param.order {named} names axes that {bottom[0].shape} does not have"
            raise ShapeError(
                message, code=ErrorCode.OUT_OF_RANGE, field="permute_param.order", got=named
            )
        self.order = (*named, *(axis for axis in range(axes) if axis not in named))
        self.back = tuple(self.order.index(axis) for axis in range(axes))

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        if bottom[0].num_axes != len(self.order):
            raise wrong_shapes(
                "Permute", f"{len(self.order)} axes for the order {self.order}", bottom[0]
            )
        self.op = ops.Permute(dtype=self.dtype, bottom=bottom[0].shape, order=self.order)
        top[0].reshape(self.op.top)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        top[0].write(self.xp.permute_dims(bottom[0].read(), self.order))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            bottom[0].write_diff(self.xp.permute_dims(top[0].read_diff(), self.back))
