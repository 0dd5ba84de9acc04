"""FocalLoss: cross entropy times a (1 - p)^gamma, which down-weights easy examples.

p is the probability of what is true: of the labelled class after a softmax, or, for each score on
its own, of its target after a sigmoid.

Source: Lin et al., Focal Loss for Dense Object Detection; with a sigmoid: caffe-windows
(happynear), ``src/caffe/layers/focal_loss_layer.cu``; with a softmax: liaomingg/Focal-Loss.
"""

from collections.abc import Iterator

from demitasse.backends.arrays import Array
from demitasse.layers.axes import ClassAxis
from demitasse.layers.base import Blobs
from demitasse.layers.checks import out_of_range
from demitasse.layers.losses.base import LossLayer, Normalization, Targets, refuse_weights
from demitasse.layers.numerics import FLT_MIN, sigmoid, sigmoid_cross_entropy, softmax
from demitasse.layers.registry import register_layer


@register_layer("FocalLoss")
class FocalLoss(LossLayer):
    """Cross entropy that down-weights easy examples.

    With one target per score, each is a yes or no of its own (target 1 or not), as in
    caffe-windows: a is ``alpha`` for yes and 1 - alpha for no, and the sum is divided by the batch
    size unless ``loss_param`` says otherwise. With one label per position it is a softmax loss, a
    is ``alpha``, and the default is VALID. A label that is no class makes the loss NaN. Not
    compared with the originals.

    Shapes: scores (*outer, C, *inner), targets of the same count, or labels outer x inner of any
    shape -> loss (). C is at ``softmax_param.axis``.

    Raises:
        ConfigError: ``gamma`` is below 0, or ``loss_param`` weighs classes or smooths labels.
        ShapeError: There is neither one target per score nor one label per position.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p, loss = self.param.focal_loss_param, self.param.loss_param
        refuse_weights(loss, self.type)
        self.alpha, self.gamma = p.alpha, p.gamma
        if self.gamma < 0:
            raise out_of_range("focal_loss_param.gamma", self.gamma, "0 or more")

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.each = bottom[0].count == bottom[1].count
        if self.each:
            default = "BATCH_SIZE"
        else:
            self.axis = ClassAxis.of(bottom[0], self.param.softmax_param.axis, bottom[1])
            default = "VALID"
        self.normalization = Normalization.of(self.param.loss_param, default)

    def losses(self, bottom: Blobs) -> Array:
        return self._terms(bottom)[0]

    def gradients(self, bottom: Blobs) -> Iterator[Array]:
        yield self._terms(bottom)[1]

    def targets(self, bottom: Blobs) -> Targets:
        shape = bottom[0].shape if self.each else (self.axis.outer, self.axis.inner)
        return self.normalization.targets(self, bottom[1], shape)

    def _terms(self, bottom: Blobs) -> tuple[Array, Array]:
        """Return the losses and their gradients."""
        return self._each(bottom) if self.each else self._classes(bottom)

    def _each(self, bottom: Blobs) -> tuple[Array, Array]:
        """Return losses and derivatives in the shape of the scores."""
        xp, x = self.xp, bottom[0].read()
        target = xp.reshape(bottom[1].read(), x.shape)
        yes = self.cast(self.cast(target, "int64") == 1)
        sign = 2 * yes - 1
        p = sigmoid(xp, sign * x)
        entropy = sigmoid_cross_entropy(xp, x, target)
        weight = (yes * self.alpha + (1 - yes) * (1 - self.alpha)) * (1 - p) ** self.gamma
        slope = weight * (sigmoid(xp, x) - target - sign * self.gamma * p * entropy)
        return weight * entropy, slope

    def _classes(self, bottom: Blobs) -> tuple[Array, Array]:
        """Return losses (outer, inner) and derivatives (outer, C, inner)."""
        xp, axis = self.xp, self.axis
        every = softmax(xp, bottom[0].read(), axis.axis)
        labels = axis.labels(self, bottom[1])
        p = axis.pick(self, every, labels)
        log = xp.log(xp.maximum(p, FLT_MIN))
        rest = xp.maximum(1 - p, FLT_MIN)
        loss = -self.alpha * rest**self.gamma * log
        loss = xp.where(axis.known(labels), loss, float("nan"))
        factor = self.alpha * (rest**self.gamma - self.gamma * p * log * rest ** (self.gamma - 1))
        every = axis.view(self, every)
        slope = xp.expand_dims(factor, axis=1) * (every - self.cast(axis.matches(self, labels)))
        return loss, slope
