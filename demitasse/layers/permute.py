"""Permute, Reorg and ShuffleChannel: elements in another order."""

import math

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.errors import ConfigError, ErrorCode
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import no_such_axis, positive, wrong_shapes
from demitasse.layers.registry import register_layer


@register_layer("Permute")
class Permute(Layer):
    """Put the axes named by ``order`` first, the others after them in their own order.

    Compared with OpenCV's output.

    Source: SSD (weiliu89/caffe), ``src/caffe/layers/permute_layer.cpp``.
    Shapes: bottom (d0, d1, ...) -> top (d[order[0]], d[order[1]], ...).

    Raises:
        ConfigError: An axis is named twice.
        ShapeError: The bottom does not have an axis, or now has another number of them.
        NetError: The top is the bottom.
    """

    bottoms = tops = Exactly(1)
    graph_capturable = True
    in_place = False

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        named, axes = list(self.param.permute_param.order), bottom[0].num_axes
        field = "permute_param.order"
        if len(set(named)) != len(named):
            message = f"{field} names an axis twice: {named}"
            raise ConfigError(message, code=ErrorCode.DUPLICATE, field=field, got=named)
        if any(axis >= axes for axis in named):
            message = f"{field} {named} names axes that {bottom[0].shape} does not have"
            raise no_such_axis(message, field=field, got=named)
        self.order = (*named, *(axis for axis in range(axes) if axis not in named))
        self.back = tuple(self.order.index(axis) for axis in range(axes))

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        if bottom[0].num_axes != len(self.order):
            expected = f"{len(self.order)} axes for the order {self.order}"
            raise wrong_shapes("Permute", expected, bottom[0])
        self.op = ops.Permute(self.dtype, bottom[0].shape, self.order)
        top[0].reshape(self.op.top)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        top[0].write(self.xp.permute_dims(bottom[0].read(), self.order))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            bottom[0].write_diff(self.xp.permute_dims(top[0].read_diff(), self.back))


@register_layer("Reorg")
class Reorg(Layer):
    """Trade height and width for channels, or with ``reverse`` channels for height and width.

    Blocks of pixels become channels, as in Darknet. Darknet reads the memory of a (C, H, W) image
    as an image (C / s^2, H s, W s) and gathers the pixels of its blocks; trained nets depend on it.
    Not compared with the original.

    Source: MobileNet-YOLO (eric612), ``src/caffe/layers/reorg_layer.cpp``; Darknet, ``src/blas.c``
    (reorg_cpu).
    Shapes: bottom (N, C, H, W) -> top (N, C s^2, H / s, W / s), or with ``reverse``
    (N, C / s^2, H s, W s), where s is ``stride``. Both ways s^2 divides C.

    Raises:
        ConfigError: ``stride`` is missing or 0.
        ShapeError: The bottom does not have four axes, or does not divide.
        NetError: The top is the bottom.
    """

    bottoms = tops = Exactly(1)
    graph_capturable = True
    in_place = False

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.reorg_param
        self.stride, self.reverse = positive(p.stride, "reorg_param.stride"), p.reverse

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        s, shape = self.stride, bottom[0].shape
        if len(shape) != 4 or shape[1] % (s * s):
            raise wrong_shapes("Reorg", f"(N, C, H, W) with C a multiple of {s * s}", bottom[0])
        n, c, h, w = shape
        if self.reverse:
            top[0].reshape((n, c // (s * s), h * s, w * s))
            return
        if h % s or w % s:
            raise wrong_shapes("Reorg", f"height and width that the stride {s} divides", bottom[0])
        top[0].reshape((n, c * s * s, h // s, w // s))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        moved = self._moved(bottom[0].read(), bottom[0].shape, to_blocks=self.reverse)
        top[0].write(self.xp.reshape(moved, top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            shape = bottom[0].shape
            moved = self._moved(top[0].read_diff(), shape, to_blocks=not self.reverse)
            bottom[0].write_diff(self.xp.reshape(moved, shape))

    def _moved(self, x: Array, shape: tuple[int, ...], *, to_blocks: bool) -> Array:
        """Return blocks gathered to channels or, with ``to_blocks``, channels scattered to blocks.

        ``shape`` is that of the bottom.
        """
        xp, s, (n, c, h, w) = self.xp, self.stride, shape
        less = c // (s * s)
        if to_blocks:
            x = xp.reshape(x, (n, s, s, less, h, w))
            return xp.permute_dims(x, (0, 3, 4, 1, 5, 2))  # (N, C / s^2, H, s, W, s)
        x = xp.reshape(x, (n, less, h, s, w, s))
        return xp.permute_dims(x, (0, 3, 5, 1, 2, 4))


@register_layer("ShuffleChannel")
class ShuffleChannel(Layer):
    """Channel j of group i becomes channel i of group j; may run in place.

    Not compared with the original.

    Source: ShuffleNet (farmingyard/ShuffleNet), ``shuffle_channel_layer.cpp``.
    Shapes: bottom (N, C, ...) -> top the same; ``group`` divides C.

    Raises:
        ConfigError: ``group`` is 0.
        ShapeError: ``group`` does not divide the channels.
    """

    bottoms = tops = Exactly(1)
    graph_capturable = True

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        group = self.param.shuffle_channel_param.group
        self.group = positive(group, "shuffle_channel_param.group")

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        shape = bottom[0].shape
        if len(shape) < 2 or shape[1] % self.group:
            expected = f"channels that group {self.group} divides"
            raise wrong_shapes("ShuffleChannel", expected, bottom[0])
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
        """Return ``x`` with its channels transposed as a table of rows and columns."""
        xp, shape = self.xp, x.shape
        table = xp.reshape(x, (shape[0], rows, columns, math.prod(shape[2:])))
        return xp.reshape(xp.permute_dims(table, (0, 2, 1, 3)), shape)
