"""Reorg: blocks of pixels become channels, the way Darknet does it.

Darknet takes the memory of a (C, H, W) image for one of (C / s^2, H s, W s) and gathers the pixels
of its blocks; trained nets depend on that.

Source: MobileNet-YOLO (eric612), ``src/caffe/layers/reorg_layer.cpp``; Darknet, ``src/blas.c``
(reorg_cpu).
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import positive, wrong_shapes
from demitasse.layers.registry import register

__all__ = ["Reorg"]


@register("Reorg")
class Reorg(Layer):
    """Trade height and width for channels, or with ``reverse`` channels for height and width.

    Not compared with the original.

    Shapes: bottom (N, C, H, W) -> top (N, C s^2, H / s, W / s), or with ``reverse``
    (N, C / s^2, H s, W s), where s is ``stride``. Both ways s^2 divides C.

    Raises:
        ConfigError: ``stride`` is missing or 0.
        ShapeError: The bottom does not have four axes, or does not divide.
        NetError: The top is the bottom.
    """

    bottoms = tops = Exactly(1)
    repeats = True
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
        moved = self._moved(bottom[0].read(), bottom[0].shape, spread=self.reverse)
        top[0].write(self.xp.reshape(moved, top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            shape = bottom[0].shape
            moved = self._moved(top[0].read_diff(), shape, spread=not self.reverse)
            bottom[0].write_diff(self.xp.reshape(moved, shape))

    def _moved(self, x: Array, shape: tuple[int, ...], *, spread: bool) -> Array:
        """Return blocks of an image gathered to channels, or channels spread over blocks.

        Args:
            x: The elements of a blob.
            shape: Shape of the bottom.
            spread: Which way.
        """
        xp, s, (n, c, h, w) = self.xp, self.stride, shape
        less = c // (s * s)
        if spread:
            x = xp.reshape(x, (n, s, s, less, h, w))
            return xp.permute_dims(x, (0, 3, 4, 1, 5, 2))  # (N, C / s^2, H, s, W, s)
        x = xp.reshape(x, (n, less, h, s, w, s))
        return xp.permute_dims(x, (0, 3, 5, 1, 2, 4))
