"""HingeLoss: sum max(0, 1 - t x)^p / N, t = 1 for the labelled class and -1 for the others.

Source: Caffe, ``src/caffe/layers/hinge_loss_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.classes import ClassAxis
from demitasse.layers.loss import LossLayer
from demitasse.layers.registry import register
from demitasse.proto import HingeLossParameter

__all__ = ["HingeLoss"]


@register("HingeLoss")
class HingeLoss(LossLayer):
    """One-against-all margin loss of class scores; ``norm`` L1 (p = 1) or L2 (p = 2).

    A label that is not a class makes the loss NaN.

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

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, axis = self.xp, self.axis
        labels = axis.labels(self, bottom[1])
        short = self._short(bottom, labels)
        loss = short * short if self.squared else short
        loss = xp.where(xp.expand_dims(axis.known(labels), axis=1), loss, float("nan"))
        top[0].write(xp.sum(loss) / axis.outer)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        self.refuse_target_gradient(list(propagate_down))
        if propagate_down[0]:
            xp, axis = self.xp, self.axis
            labels = axis.labels(self, bottom[1])
            short = self._short(bottom, labels)
            diff = 2 * short if self.squared else xp.sign(short)
            diff = xp.where(axis.matches(self, labels), -diff, diff)
            scale = top[0].read_diff() / axis.outer
            bottom[0].write_diff(xp.reshape(diff * scale, bottom[0].shape))

    def _short(self, bottom: Blobs, labels: Array) -> Array:
        """Return how much each score lacks of its margin. Shape: (N, K, 1)."""
        xp, axis = self.xp, self.axis
        x = xp.reshape(bottom[0].read(), (axis.outer, axis.classes, 1))
        return xp.maximum(1 + xp.where(axis.matches(self, labels), -x, x), 0.0)
