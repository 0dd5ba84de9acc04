"""SigmoidCrossEntropyLoss: -sum (t log s(x) + (1 - t) log(1 - s(x))) / normaliser.

Source: Caffe, ``src/caffe/layers/sigmoid_cross_entropy_loss_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.errors import ShapeError
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.classes import normalizer
from demitasse.layers.loss import LossLayer, normalization_of, refuse_weights
from demitasse.layers.registry import register
from demitasse.layers.sigmoid import sigmoid

__all__ = ["SigmoidCrossEntropyLoss"]


@register("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(LossLayer):
    """Compare scores with target probabilities, each on its own; stable for large scores.

    The sum is divided by the batch size unless ``loss_param`` says otherwise. A target whose whole
    part is ``ignore_label`` does not count.

    Shapes: scores (N, ...), targets of the same count -> loss ().

    Raises:
        ConfigError: ``loss_param`` weighs classes or smooths labels.
        ShapeError: Scores and targets differ in count.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p = self.param.loss_param
        refuse_weights(p, self.type)
        self.ignore_label = p.ignore_label if p.HasField("ignore_label") else None
        self.normalization = normalization_of(p, default="BATCH_SIZE")

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count:
            message = f"scores {bottom[0].shape} and targets {bottom[1].shape} differ in count"
            raise ShapeError(message)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, x, target, valid = self.xp, *self._inputs(bottom)
        # log(1 + exp(-|x|)) + max(x, 0) - x t
        loss = xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(x, 0.0) - x * target
        if valid is not None:
            loss = xp.where(valid, loss, 0.0)
        top[0].write(xp.sum(loss) / self._normalizer(bottom, valid))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        self.refuse_target_gradient(list(propagate_down))
        if propagate_down[0]:
            x, target, valid = self._inputs(bottom)
            diff = sigmoid(self, x) - target
            if valid is not None:
                diff = self.xp.where(valid, diff, 0.0)
            bottom[0].write_diff(diff * (top[0].read_diff() / self._normalizer(bottom, valid)))

    def _inputs(self, bottom: Blobs) -> tuple[Array, Array, Array | None]:
        """Return scores, targets and which of them count, all in the shape of the scores."""
        x = bottom[0].read()
        target = self.xp.reshape(bottom[1].read(), x.shape)
        if self.ignore_label is None:
            return x, target, None
        return x, target, self.cast(target, "int64") != self.ignore_label

    def _normalizer(self, bottom: Blobs, valid: Array | None) -> Array | float:
        n, count = bottom[0].shape[0], bottom[0].count
        return normalizer(self, self.normalization, n, count, valid)
