"""ShuffleChannel: channels of several groups, one of each in turn.

Source: ShuffleNet (farmingyard/ShuffleNet), ``shuffle_channel_layer.cpp``.
"""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import positive, wrong_shapes
from demitasse.layers.registry import register

__all__ = ["ShuffleChannel"]


@register("ShuffleChannel")
class ShuffleChannel(Layer):
    """Channel j of group i becomes channel i of group j; may run in place.

    Not compared with the original.

    Shapes: bottom (N, C, ...) -> top the same; ``group`` divides C.

    Raises:
        ConfigError: ``group`` is 0.
        ShapeError: ``group`` does not divide the channels.
    """

    bottoms = tops = Exactly(1)
    repeats = True

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        group = self.param.shuffle_channel_param.group
        self.group = positive(group, "shuffle_channel_param.group")

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        shape = bottom[0].shape
        if len(shape) < 2 or shape[1] % self.group:
            raise wrong_shapes(
                "ShuffleChannel", f"channels that group {self.group} divides", bottom[0]
            )
        self.op = ops.Shuffle(dtype=self.dtype, shape=shape, group=self.group)
        top[0].reshape_like(bottom[0])

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        x = bottom[0].read()
        top[0].write(self._shuffled(x, self.group, x.shape[1] // self.group))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            dy = top[0].read_diff()
            bottom[0].write_diff(self._shuffled(dy, dy.shape[1] // self.group, self.group))

    def _shuffled(self, x: Array, rows: int, columns: int) -> Array:
        """Return ``x`` with its channels read by columns, as if written in rows."""
        xp, shape = self.xp, x.shape
        table = xp.reshape(x, (shape[0], rows, columns, math.prod(shape[2:])))
        return xp.reshape(xp.permute_dims(table, (0, 2, 1, 3)), shape)
