"""SmoothL1Loss: a squared error near 0, an absolute one beyond, summed and divided by N.

With d the difference: (s d)^2 / 2 where |d| < 1 / s^2, |d| - 1 / (2 s^2) elsewhere.

Source: Fast R-CNN (rbgirshick/caffe-fast-rcnn), ``src/caffe/layers/smooth_L1_loss_layer.cu``; SSD
(weiliu89/caffe), the same file.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.errors import ConfigError, NetError, ShapeError
from demitasse.layers.base import Between, Blobs, Flags
from demitasse.layers.loss import LossLayer
from demitasse.layers.registry import register

__all__ = ["SmoothL1Loss"]


@register("SmoothL1Loss")
class SmoothL1Loss(LossLayer):
    """Robust distance of two batches, with a gradient for both; s is ``sigma``.

    A third bottom multiplies the differences, a fourth one the losses. Not compared with the
    originals, which run on GPUs only; the gradient is exact for any weights, where that of SSD,
    which has three bottoms, is so for weights of 0 and 1.

    Shapes: bottoms (N, ...), all of the same count -> loss ().

    Raises:
        ConfigError: ``sigma`` is not above 0.
        ShapeError: The bottoms differ in count.
        NetError: The gradient of weights is asked for.
    """

    bottoms = Between(2, 4)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        sigma = self.param.smooth_l1_loss_param.sigma
        if sigma <= 0:
            message = f"smooth_l1_loss_param.sigma must be above 0, it is {sigma:g}"
            raise ConfigError(message)
        self.square = sigma * sigma

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        for blob in bottom[1:]:
            if blob.count != bottom[0].count:
                message = (
                    f"bottoms {bottom[0].shape} and {blob.shape} differ in count: "
                    f"{bottom[0].count} and {blob.count}"
                )
                raise ShapeError(message)

    def allow_force_backward(self, bottom_index: int) -> bool:
        return bottom_index < 2

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, diff, n = self.xp, self._diff(bottom), bottom[0].shape[0]
        size = xp.abs(diff)
        near = 0.5 * self.square * diff * diff
        loss = xp.where(size < 1 / self.square, near, size - 0.5 / self.square)
        if len(bottom) > 3:
            loss = loss * self._like_first(bottom, 3)
        top[0].write(xp.sum(loss) / n)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if any(propagate_down[2:]):
            message = "SmoothL1Loss has no gradient for its weights (bottoms 2 and 3)"
            raise NetError(message)
        if not any(propagate_down):
            return
        xp, diff, n = self.xp, self._diff(bottom), bottom[0].shape[0]
        slope = xp.where(xp.abs(diff) < 1 / self.square, self.square * diff, xp.sign(diff))
        for index in range(2, len(bottom)):
            slope = slope * self._like_first(bottom, index)
        slope = slope * (top[0].read_diff() / n)
        for blob, sign, wanted in zip(bottom, (1, -1), propagate_down, strict=False):
            if wanted:
                blob.write_diff(xp.reshape(sign * slope, blob.shape))

    def _diff(self, bottom: Blobs) -> Array:
        """Return the difference, multiplied by the third bottom. Shape: that of the first."""
        diff = bottom[0].read() - self._like_first(bottom, 1)
        return diff * self._like_first(bottom, 2) if len(bottom) > 2 else diff

    def _like_first(self, bottom: Blobs, index: int) -> Array:
        return self.xp.reshape(bottom[index].read(), bottom[0].shape)
