"""FocalLoss: cross entropy times a (1 - p)^gamma, so that what is easy counts little.

p is the probability of what is true: of the labelled class after a softmax, or, for each score on
its own, of its target after a sigmoid.

Source: Lin et al., Focal Loss for Dense Object Detection; with a sigmoid: caffe-windows
(happynear), ``src/caffe/layers/focal_loss_layer.cu``; with a softmax: liaomingg/Focal-Loss.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.errors import ConfigError
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.classes import ClassAxis, normalizer
from demitasse.layers.loss import LossLayer, normalization_of, refuse_weights
from demitasse.layers.registry import register
from demitasse.layers.sigmoid import sigmoid
from demitasse.layers.softmax import softmax

__all__ = ["FocalLoss"]

SMALLEST = 1.1754943508222875e-38  # FLT_MIN: the smallest probability whose logarithm is taken


@register("FocalLoss")
class FocalLoss(LossLayer):
    """Cross entropy that down-weights easy examples.

    With one target per score, each is a yes or no of its own (target 1 or not), as in
    caffe-windows: a is ``alpha`` for yes and 1 - alpha for no, and the sum is divided by the batch
    size unless ``loss_param`` says otherwise. With one label per place it is a softmax loss, a is
    ``alpha``, and the default is VALID. A label that is no class makes the loss NaN. Not compared
    with the originals.

    Shapes: scores (*outer, C, *inner), targets of the same count, or labels outer x inner of any
    shape -> loss (). C is at ``softmax_param.axis``.

    Raises:
        ConfigError: ``gamma`` is below 0, or ``loss_param`` weighs classes or smooths labels.
        ShapeError: There is neither one target per score nor one label per place.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p, loss = self.param.focal_loss_param, self.param.loss_param
        refuse_weights(loss, self.type)
        self.alpha, self.gamma = p.alpha, p.gamma
        if self.gamma < 0:
            message = f"focal_loss_param.gamma must be 0 or more, it is {self.gamma:g}"
            raise ConfigError(message)
        self.ignore_label = loss.ignore_label if loss.HasField("ignore_label") else None

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.each = bottom[0].count == bottom[1].count
        if self.each:
            self.counts = bottom[0].shape[0], bottom[0].count
        else:
            self.axis = ClassAxis.of(bottom[0], self.param.softmax_param.axis, bottom[1])
            self.counts = self.axis.outer, self.axis.places

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        loss, _, valid = self._terms(bottom)
        top[0].write(self.xp.sum(loss) / self._normalizer(valid))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        self.refuse_target_gradient(list(propagate_down))
        if propagate_down[0]:
            _, slope, valid = self._terms(bottom)
            scaled = slope * (top[0].read_diff() / self._normalizer(valid))
            bottom[0].write_diff(self.xp.reshape(scaled, bottom[0].shape))

    def _terms(self, bottom: Blobs) -> tuple[Array, Array, Array | None]:
        """Return the losses, their gradients for the scores, and which of them count."""
        loss, slope, labels = (self._each if self.each else self._classes)(bottom)
        if self.ignore_label is None:
            return loss, slope, None
        xp = self.xp
        valid = labels != self.ignore_label
        spread = valid if self.each else xp.expand_dims(valid, axis=1)
        return xp.where(valid, loss, 0.0), xp.where(spread, slope, 0.0), valid

    def _each(self, bottom: Blobs) -> tuple[Array, Array, Array]:
        """Return losses, gradients and targets, all in the shape of the scores."""
        xp, x = self.xp, bottom[0].read()
        target = xp.reshape(bottom[1].read(), x.shape)
        labels = self.cast(target, "int64")
        yes = self.cast(labels == 1)
        sign = 2 * yes - 1
        p = sigmoid(self, sign * x)
        entropy = xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(x, 0.0) - x * target
        weight = (yes * self.alpha + (1 - yes) * (1 - self.alpha)) * (1 - p) ** self.gamma
        slope = weight * (sigmoid(self, x) - target - sign * self.gamma * p * entropy)
        return weight * entropy, slope, labels

    def _classes(self, bottom: Blobs) -> tuple[Array, Array, Array]:
        """Return losses (outer, inner), gradients (outer, C, inner) and labels (outer, inner)."""
        xp, axis = self.xp, self.axis
        every = softmax(self, bottom[0].read(), axis.axis)
        labels = axis.labels(self, bottom[1])
        p = axis.pick(self, every, labels)
        log = xp.log(xp.maximum(p, SMALLEST))
        rest = xp.maximum(1 - p, SMALLEST)
        loss = -self.alpha * rest**self.gamma * log
        loss = xp.where(axis.known(labels), loss, float("nan"))
        factor = self.alpha * (rest**self.gamma - self.gamma * p * log * rest ** (self.gamma - 1))
        every = xp.reshape(every, (axis.outer, axis.classes, axis.inner))
        slope = xp.expand_dims(factor, axis=1) * (every - self.cast(axis.matches(self, labels)))
        return loss, slope, labels

    def _normalizer(self, valid: Array | None) -> Array | float:
        default = "BATCH_SIZE" if self.each else "VALID"
        mode = normalization_of(self.param.loss_param, default=default)
        return normalizer(self, mode, *self.counts, valid)
