"""Tile: several copies of the bottom along one axis."""

import math

from demitasse.backends import ops
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import positive
from demitasse.layers.registry import register_layer


@register_layer("Tile")
class Tile(Layer):
    """Repeat the bottom ``tiles`` times along ``axis``.

    Source: Caffe, ``src/caffe/layers/tile_layer.cpp``.
    Shapes: bottom (*lead, n, *rest) -> top (*lead, n * tiles, *rest).

    Raises:
        ConfigError: ``tiles`` is missing or not above 0.
        ShapeError: There is no such axis.
        NetError: The top is the bottom.
    """

    bottoms = tops = Exactly(1)
    graph_capturable = True
    in_place = False

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.tile_param
        tiles = positive(p.tiles, "tile_param.tiles")
        axis = bottom[0].canonical_axis(p.axis)
        shape = bottom[0].shape
        top[0].reshape((*shape[:axis], shape[axis] * tiles, *shape[axis + 1 :]))
        self.copies = (math.prod(shape[:axis]), tiles, math.prod(shape[axis:]))
        self.op = ops.Tile(self.dtype, *self.copies)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp = self.xp
        outer, _, inner = self.copies
        block = xp.reshape(bottom[0].read(), (outer, 1, inner))
        top[0].write(xp.reshape(xp.broadcast_to(block, self.copies), top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            dy = self.xp.reshape(top[0].read_diff(), self.copies)
            bottom[0].write_diff(self.xp.reshape(self.xp.sum(dy, axis=1), bottom[0].shape))
