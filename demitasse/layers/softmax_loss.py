"""SoftmaxWithLoss: the multinomial logistic loss of a softmax, -sum log(p_label) / normaliser.

Source: Caffe, ``src/caffe/layers/softmax_loss_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.base import Array
from demitasse.layers.base import Between, Blobs, Flags, register
from demitasse.layers.classes import ClassAxis, normalizer
from demitasse.layers.loss import LossLayer, normalization_of
from demitasse.layers.softmax import softmax

__all__ = ["SoftmaxWithLoss"]

SMALLEST = 1.1754943508222875e-38  # FLT_MIN: the smallest probability whose logarithm is taken


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(LossLayer):
    """Compare scores with class labels, stably: the gradient needs no logarithm.

    A label that is neither a class nor ``ignore_label`` makes the loss NaN.

    Shapes: scores (*outer, C, *inner), labels outer x inner of any shape -> loss (), and, with a
    second top, the probabilities, shaped like the scores. C is at ``softmax_param.axis``.

    Raises:
        ShapeError: There is not one label for each place.
    """

    tops = Between(1, 2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p = self.param.loss_param
        self.ignore_label = p.ignore_label if p.HasField("ignore_label") else None
        self.normalization = normalization_of(p, default="VALID")

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.axis = ClassAxis.of(bottom[0], self.param.softmax_param.axis, bottom[1])
        prob = self.saved("prob", bottom[0].shape)
        if len(top) > 1:
            top[1].reshape_like(bottom[0])
            top[1].share_data(prob.blob)
        self.op = ops.SoftmaxLoss(
            dtype=self.dtype,
            bottom=bottom[0].shape,
            axis=self.axis.axis,
            ignore_label=self.ignore_label,
            normalization=self.normalization,
            tops=len(top),
        )

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, axis = self.xp, self.axis
        prob = softmax(self, bottom[0].read(), axis.axis)
        self.saved("prob", prob.shape).write(prob)
        labels = axis.labels(self, bottom[1])
        loss = -xp.log(xp.maximum(axis.pick(self, prob, labels), SMALLEST))
        loss = xp.where(axis.known(labels), loss, float("nan"))
        valid = self._valid(labels)
        if valid is not None:
            loss = xp.where(valid, loss, 0.0)
        top[0].write(xp.sum(loss) / self._normalizer(valid))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        self.refuse_target_gradient(list(propagate_down))
        if not propagate_down[0]:
            return
        xp, axis, shape = self.xp, self.axis, bottom[0].shape
        labels = axis.labels(self, bottom[1])
        valid = self._valid(labels)
        scale = top[0].read_diff() / self._normalizer(valid)
        prob = xp.reshape(self.saved("prob", shape).read(), (axis.outer, axis.classes, axis.inner))
        diff = prob - self.cast(axis.matches(self, labels))  # (outer, C, inner)
        if valid is not None:
            diff = xp.where(xp.expand_dims(valid, axis=1), diff, 0.0)
        bottom[0].write_diff(xp.reshape(diff * scale, shape))

    def _valid(self, labels: Array) -> Array | None:
        return None if self.ignore_label is None else labels != self.ignore_label

    def _normalizer(self, valid: Array | None) -> Array | float:
        return normalizer(self, self.normalization, self.axis.outer, self.axis.places, valid)
