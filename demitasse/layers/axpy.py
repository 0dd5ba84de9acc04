"""Axpy: y = a x + b, where a has one value for each channel of each item."""

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.errors import ErrorCode, NetError
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import wrong_shapes
from demitasse.layers.registry import register_layer


@register_layer("Axpy")
class Axpy(Layer):
    """Scale the channels of the second bottom and add the third; may run in place of the third.

    Not compared with the original.

    Source: SENet (hujie-frank/SENet), ``src/caffe/layers/axpy_layer.cpp``.
    Shapes: bottoms a (N, C) or (N, C, 1, 1), x (N, C, ...), b as x -> top as x.

    Raises:
        ShapeError: The bottoms do not have these shapes.
        NetError: The top is the first or the second bottom.
    """

    bottoms = Exactly(3)
    tops = Exactly(1)
    graph_capturable = True

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        a, x, b = bottom
        fits = x.num_axes >= 2 and x.shape == b.shape and a.shape[:2] == x.shape[:2]
        if not fits or a.count != x.shape[0] * x.shape[1]:
            raise wrong_shapes("Axpy", "a (N, C), x (N, C, ...) and b like x", a, x, b)
        if top[0] is a or top[0] is x:
            message = "Axpy can run in place of its third bottom only; rename the top"
            raise NetError(message, code=ErrorCode.CONFLICT, blob=top[0].name)
        top[0].reshape_like(x)
        self.op = ops.Axpy(dtype=self.dtype, shape=x.shape)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        _, x, b = bottom
        top[0].write(self._scale(bottom) * x.read() + b.read())

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, dy = self.xp, top[0].read_diff()
        a, x, b = bottom
        if propagate_down[0]:
            da = xp.sum(dy * x.read(), axis=tuple(range(2, x.num_axes)))
            a.write_diff(xp.reshape(da, a.shape))
        if propagate_down[1]:
            x.write_diff(self._scale(bottom) * dy)
        if propagate_down[2] and b is not top[0]:
            b.write_diff(dy)

    def _scale(self, bottom: Blobs) -> Array:
        a, x, _ = bottom
        return self.xp.reshape(a.read(), (*x.shape[:2], *(1,) * (x.num_axes - 2)))
