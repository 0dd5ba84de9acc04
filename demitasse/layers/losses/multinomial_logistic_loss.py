"""MultinomialLogisticLoss: -sum log(p_label) / N, of probabilities."""

from demitasse.backends.arrays import Array
from demitasse.layers.axes import ClassAxis
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.losses.base import LossLayer
from demitasse.layers.numerics import LOG_THRESHOLD
from demitasse.layers.registry import register_layer


@register_layer("MultinomialLogisticLoss")
class MultinomialLogisticLoss(LossLayer):
    """Compare probabilities with class labels; after a Softmax prefer SoftmaxWithLoss.

    A label that is not a class makes the loss NaN.

    Source: Caffe, ``src/caffe/layers/multinomial_logistic_loss_layer.cpp``.
    Shapes: probabilities (N, ...) with K values per sample, labels (N,) -> loss ().

    Raises:
        ShapeError: There is not one label per sample.
    """

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.axis = ClassAxis.of_samples(bottom[0], bottom[1])

    def losses(self, bottom: Blobs) -> Array:
        xp, labels = self.xp, self.axis.labels(self, bottom[1])
        loss = -xp.log(self._picked(bottom, labels))
        return xp.where(self.axis.known(labels), loss, float("nan"))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            xp, labels = self.xp, self.axis.labels(self, bottom[1])
            # quotients in Caffe's order; slopes times a scale would round otherwise
            slope = -top[0].read_diff() / self.axis.outer / self._picked(bottom, labels)
            hit = self.axis.matches(self, labels)  # (N, K, 1)
            diff = xp.where(hit, xp.expand_dims(slope, axis=1), 0.0)
            bottom[0].write_diff(xp.reshape(diff, bottom[0].shape))

    def _picked(self, bottom: Blobs, labels: Array) -> Array:
        """Return the probabilities of the labels, none too small. Shape: (N, 1)."""
        picked = self.axis.pick(self, bottom[0].read(), labels)
        return self.xp.maximum(picked, LOG_THRESHOLD)
