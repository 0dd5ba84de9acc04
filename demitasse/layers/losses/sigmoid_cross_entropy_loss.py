"""SigmoidCrossEntropyLoss: -sum (t log s(x) + (1 - t) log(1 - s(x))) / normaliser."""

from collections.abc import Iterator

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs
from demitasse.layers.checks import wrong_shapes
from demitasse.layers.losses.base import LossLayer, Normalization, Targets, refuse_weights
from demitasse.layers.numerics import sigmoid, sigmoid_cross_entropy
from demitasse.layers.registry import register_layer


@register_layer("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(LossLayer):
    """Compare scores with target probabilities, each on its own; stable for large scores.

    The sum is divided by the batch size unless ``loss_param`` says otherwise. A target whose whole
    part is ``ignore_label`` does not count.

    Source: Caffe, ``src/caffe/layers/sigmoid_cross_entropy_loss_layer.cpp``.
    Shapes: scores (N, ...), targets of the same count -> loss ().

    Raises:
        ConfigError: ``loss_param`` weighs classes or smooths labels.
        ShapeError: Scores and targets differ in count.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p = self.param.loss_param
        refuse_weights(p, self.type)
        self.normalization = Normalization.of(p, default="BATCH_SIZE")

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count:
            raise wrong_shapes("SigmoidCrossEntropyLoss", "one target for each score", *bottom)
        rule, shape = self.normalization, bottom[0].shape
        count, counts_some = bottom[0].count, rule.mode == "VALID" and rule.ignore_label is not None
        divisor = None if counts_some else rule.normalizer(shape[0], count)
        self.op = ops.PairLoss(self.dtype, "sigmoid", count, divisor, rule.ignore_label)

    def losses(self, bottom: Blobs) -> Array:
        return sigmoid_cross_entropy(self.xp, bottom[0].read(), self._target(bottom))

    def gradients(self, bottom: Blobs) -> Iterator[Array]:
        yield sigmoid(self.xp, bottom[0].read()) - self._target(bottom)

    def targets(self, bottom: Blobs) -> Targets:
        return self.normalization.targets(self, bottom[1], bottom[0].shape)

    def _target(self, bottom: Blobs) -> Array:
        """Return the targets in the shape of the scores."""
        return self.xp.reshape(bottom[1].read(), bottom[0].shape)
