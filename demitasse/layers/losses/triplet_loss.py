"""TripletLoss: sum max(|a - p|^2 - |a - n|^2 + margin, 0) / (2 N)."""

from collections.abc import Iterator

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Exactly
from demitasse.layers.checks import wrong_shapes
from demitasse.layers.losses.base import LossLayer
from demitasse.layers.registry import register_layer


@register_layer("TripletLoss")
class TripletLoss(LossLayer):
    """Pull an anchor nearer to a positive than to a negative by ``margin``, in squared distance.

    Not compared with the original.

    Source: caffe-windows (happynear), ``src/caffe/layers/triplet_loss_layer.cpp``; Schroff et al.,
    FaceNet.
    Shapes: anchors, positives, negatives (N, ...), all the same -> loss ().

    Raises:
        ShapeError: The bottoms have different shapes.
    """

    bottoms = Exactly(3)
    differentiable = (0, 1, 2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        self.margin = self.param.triplet_loss_param.margin

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        anchor, positive, negative = bottom
        if not anchor.shape == positive.shape == negative.shape:
            raise wrong_shapes("TripletLoss", "bottoms of one shape", *bottom)

    def losses(self, bottom: Blobs) -> Array:
        *_, short = self._distances(bottom)
        return self.xp.sum(self.xp.maximum(short, 0.0)) / 2

    def gradients(self, bottom: Blobs) -> Iterator[Array]:
        near, far, short = self._distances(bottom)
        counts = self.cast(short > 0)  # (N, 1)
        yield (near - far) * counts
        yield -near * counts
        yield far * counts

    def _distances(self, bottom: Blobs) -> tuple[Array, Array, Array]:
        """Return a - p, a - n (N, K), and the margin violation (N, 1)."""
        xp, rows = self.xp, (bottom[0].shape[0], bottom[0].count_from(1))
        anchor, positive, negative = (xp.reshape(blob.read(), rows) for blob in bottom)
        near, far = anchor - positive, anchor - negative
        short = xp.sum(near * near, axis=1, keepdims=True) + self.margin
        return near, far, short - xp.sum(far * far, axis=1, keepdims=True)
