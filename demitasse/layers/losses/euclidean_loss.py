"""EuclideanLoss: sum (a - b)^2 / (2 N)."""

from collections.abc import Iterator

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs
from demitasse.layers.checks import wrong_shapes
from demitasse.layers.losses.base import LossLayer
from demitasse.layers.registry import register_layer


@register_layer("EuclideanLoss")
class EuclideanLoss(LossLayer):
    """Half the mean squared distance of two batches, with a gradient for both.

    Source: Caffe, ``src/caffe/layers/euclidean_loss_layer.cpp``.
    Shapes: bottoms (N, ...), (N, ...) of the same count -> loss ().

    Raises:
        ShapeError: The bottoms differ in count per sample.
    """

    differentiable = (0, 1)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        if bottom[0].count_from(1) != bottom[1].count_from(1):
            expected = "as many values per sample in both bottoms"
            raise wrong_shapes("EuclideanLoss", expected, *bottom)
        count, n = bottom[0].count, float(bottom[0].shape[0])
        self.op = ops.PairLoss(self.dtype, "euclidean", count, divisor=n, ignore_label=None)

    def losses(self, bottom: Blobs) -> Array:
        diff = self._diff(bottom)
        return self.xp.sum(diff * diff) / 2

    def gradients(self, bottom: Blobs) -> Iterator[Array]:
        diff = self._diff(bottom)
        yield diff
        yield -diff

    def _diff(self, bottom: Blobs) -> Array:
        return bottom[0].read() - self.xp.reshape(bottom[1].read(), bottom[0].shape)
