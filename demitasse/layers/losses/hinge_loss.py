"""HingeLoss: sum max(0, 1 - t x)^p / N, t = 1 for the labelled class and -1 for the others."""

from collections.abc import Iterator

from demitasse.backends.arrays import Array
from demitasse.io.proto import HingeLossParameter
from demitasse.layers.axes import ClassAxis
from demitasse.layers.base import Blobs
from demitasse.layers.losses.base import LossLayer
from demitasse.layers.registry import register_layer


@register_layer("HingeLoss")
class HingeLoss(LossLayer):
    """One-against-all margin loss of class scores; ``norm`` L1 (p = 1) or L2 (p = 2).

    A label that is not a class makes the loss NaN.

    Source: Caffe, ``src/caffe/layers/hinge_loss_layer.cpp``.
    Shapes: scores (N, ...) with K values per sample, labels (N,) -> loss ().

    Raises:
        ShapeError: There is not one label per sample.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        self.squared = self.param.hinge_loss_param.norm == HingeLossParameter.L2

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.axis = ClassAxis.of_samples(bottom[0], bottom[1])

    def losses(self, bottom: Blobs) -> Array:
        xp, axis = self.xp, self.axis
        labels = axis.labels(self, bottom[1])
        short = self._short(bottom, labels)
        loss = short * short if self.squared else short
        return xp.where(xp.expand_dims(axis.known(labels), axis=1), loss, float("nan"))

    def gradients(self, bottom: Blobs) -> Iterator[Array]:
        xp, axis = self.xp, self.axis
        labels = axis.labels(self, bottom[1])
        short = self._short(bottom, labels)
        slope = 2 * short if self.squared else xp.sign(short)
        yield xp.where(axis.matches(self, labels), -slope, slope)

    def _short(self, bottom: Blobs, labels: Array) -> Array:
        """Return the margin violation of each score. Shape: (N, K, 1)."""
        xp, axis = self.xp, self.axis
        x = xp.reshape(bottom[0].read(), (axis.outer, axis.classes, 1))
        return xp.maximum(1 + xp.where(axis.matches(self, labels), -x, x), 0.0)
