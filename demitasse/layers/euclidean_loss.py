"""EuclideanLoss: sum (a - b)^2 / (2 N).

Source: Caffe, ``src/caffe/layers/euclidean_loss_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.errors import ShapeError
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.loss import LossLayer
from demitasse.layers.registry import register

__all__ = ["EuclideanLoss"]


@register("EuclideanLoss")
class EuclideanLoss(LossLayer):
    """Half the mean squared distance of two batches, with a gradient for both.

    Shapes: bottoms (N, ...), (N, ...) of the same count -> loss ().

    Raises:
        ShapeError: The bottoms differ in count per sample.
    """

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        if bottom[0].count_from(1) != bottom[1].count_from(1):
            message = (
                f"bottoms {bottom[0].shape} and {bottom[1].shape} differ in count per sample: "
                f"{bottom[0].count_from(1)} and {bottom[1].count_from(1)}"
            )
            raise ShapeError(message)

    def allow_force_backward(self, bottom_index: int) -> bool:
        del bottom_index
        return True

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        diff = self._diff(bottom)
        top[0].write(self.xp.sum(diff * diff) / (2 * bottom[0].shape[0]))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not any(propagate_down):
            return
        gradient = self._diff(bottom) * (top[0].read_diff() / bottom[0].shape[0])
        if propagate_down[0]:
            bottom[0].write_diff(gradient)
        if propagate_down[1]:
            bottom[1].write_diff(self.xp.reshape(-gradient, bottom[1].shape))

    def _diff(self, bottom: Blobs) -> Array:
        return bottom[0].read() - self.xp.reshape(bottom[1].read(), bottom[0].shape)
