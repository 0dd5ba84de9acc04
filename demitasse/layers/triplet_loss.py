"""TripletLoss: sum max(|a - p|^2 - |a - n|^2 + margin, 0) / (2 N).

Source: caffe-windows (happynear), ``src/caffe/layers/triplet_loss_layer.cpp``; Schroff et al.,
FaceNet.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.errors import ShapeError
from demitasse.layers.base import Blobs, Exactly, Flags
from demitasse.layers.loss import LossLayer
from demitasse.layers.registry import register

__all__ = ["TripletLoss"]


@register("TripletLoss")
class TripletLoss(LossLayer):
    """Want an anchor nearer to a positive than to a negative by ``margin``, in squared distance.

    Not compared with the original.

    Shapes: anchors, positives, negatives (N, ...), all the same -> loss ().

    Raises:
        ShapeError: The bottoms have different shapes.
    """

    bottoms = Exactly(3)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        self.margin = self.param.triplet_loss_param.margin

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        anchor, positive, negative = bottom
        if not anchor.shape == positive.shape == negative.shape:
            message = (
                "anchors, positives and negatives must have one shape, not "
                f"{anchor.shape}, {positive.shape} and {negative.shape}"
            )
            raise ShapeError(message)

    def allow_force_backward(self, bottom_index: int) -> bool:
        del bottom_index
        return True

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, (near, far, short) = self.xp, self._distances(bottom)
        del near, far
        top[0].write(xp.sum(xp.maximum(short, 0.0)) / (2 * bottom[0].shape[0]))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        near, far, short = self._distances(bottom)
        scale = self.cast(short > 0) * (top[0].read_diff() / bottom[0].shape[0])  # (N, 1)
        for blob, slope, wanted in zip(
            bottom, (near - far, -near, far), propagate_down, strict=True
        ):
            if wanted:
                blob.write_diff(self.xp.reshape(slope * scale, blob.shape))

    def _distances(self, bottom: Blobs) -> tuple[Array, Array, Array]:
        """Return a - p, a - n (N, K), and how much is missing to the margin (N, 1)."""
        xp, rows = self.xp, (bottom[0].shape[0], -1)
        anchor, positive, negative = (xp.reshape(blob.read(), rows) for blob in bottom)
        near, far = anchor - positive, anchor - negative
        short = xp.sum(near * near, axis=1, keepdims=True) + self.margin
        return near, far, short - xp.sum(far * far, axis=1, keepdims=True)
