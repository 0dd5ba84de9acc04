"""SmoothL1Loss: a squared error near 0, an absolute one beyond, summed and divided by N.

With d the difference: (s d)^2 / 2 where |d| < 1 / s^2, |d| - 1 / (2 s^2) elsewhere.

Source: Fast R-CNN (rbgirshick/caffe-fast-rcnn), ``src/caffe/layers/smooth_L1_loss_layer.cu``; SSD
(weiliu89/caffe), the same file.
"""

from __future__ import annotations

from collections.abc import Iterator

from demitasse.backends.arrays import Array
from demitasse.layers.base import Between, Blobs
from demitasse.layers.checks import out_of_range, wrong_shapes
from demitasse.layers.losses.base import LossLayer
from demitasse.layers.registry import register

__all__ = ["SmoothL1Loss"]


@register("SmoothL1Loss")
class SmoothL1Loss(LossLayer):
    """Robust distance of two batches, with a gradient for both; s is ``sigma``.

    A third bottom multiplies the differences, a fourth one the losses; they get no gradient, even
    where ``propagate_down`` asks for it, as in the originals. Not compared with the
    originals, which run on GPUs only; the gradient is exact for any weights, where that of SSD,
    which has three bottoms, is so for weights of 0 and 1.

    Shapes: bottoms (N, ...), all of the same count -> loss ().

    Raises:
        ConfigError: ``sigma`` is not above 0.
        ShapeError: The bottoms differ in count.
    """

    bottoms = Between(2, 4)
    differentiable = (0, 1)
    refuses_gradients = False

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        sigma = self.param.smooth_l1_loss_param.sigma
        if sigma <= 0:
            raise out_of_range("smooth_l1_loss_param.sigma", sigma, "a number above 0")
        self.square = sigma * sigma

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        for blob in bottom[1:]:
            if blob.count != bottom[0].count:
                raise wrong_shapes(self.type, "bottoms of one count", bottom[0], blob)

    def losses(self, bottom: Blobs) -> Array:
        xp, diff = self.xp, self._diff(bottom)
        size = xp.abs(diff)
        near = 0.5 * self.square * diff * diff
        loss = xp.where(size < 1 / self.square, near, size - 0.5 / self.square)
        return loss * self._like_first(bottom, 3) if len(bottom) > 3 else loss

    def slopes(self, bottom: Blobs) -> Iterator[Array]:
        xp, diff = self.xp, self._diff(bottom)
        slope = xp.where(xp.abs(diff) < 1 / self.square, self.square * diff, xp.sign(diff))
        for index in range(2, len(bottom)):
            slope = slope * self._like_first(bottom, index)
        yield slope
        yield -slope

    def _diff(self, bottom: Blobs) -> Array:
        """Return the difference, multiplied by the third bottom. Shape: that of the first."""
        diff = bottom[0].read() - self._like_first(bottom, 1)
        return diff * self._like_first(bottom, 2) if len(bottom) > 2 else diff

    def _like_first(self, bottom: Blobs, index: int) -> Array:
        return self.xp.reshape(bottom[index].read(), bottom[0].shape)
