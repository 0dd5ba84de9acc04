"""SoftmaxWithLoss: the multinomial logistic loss of a softmax, -sum log(p_label) / normaliser.

Source: Caffe, ``src/caffe/layers/softmax_loss_layer.cpp``. Class weights: caffe-segnet-cudnn5
(TimoSaemann), the same file; sample weights: pull request 5828 of BVLC/caffe; label smoothing:
Szegedy et al., Rethinking the Inception Architecture for Computer Vision.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.errors import ConfigError, NetError, ShapeError
from demitasse.layers.base import Between, Blobs, Flags
from demitasse.layers.classes import ClassAxis, normalizer
from demitasse.layers.loss import LossLayer, at_least_one, normalization_of
from demitasse.layers.registry import register
from demitasse.layers.softmax import softmax

__all__ = ["SoftmaxWithLoss"]

SMALLEST = 1.1754943508222875e-38  # FLT_MIN: the smallest probability whose logarithm is taken


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(LossLayer):
    """Compare scores with class labels, stably: the gradient needs no logarithm.

    A label that is neither a class nor ``ignore_label`` makes the loss NaN.

    Beyond Caffe: a third bottom weighs the loss of each place; their sum over valid places is then
    the normaliser VALID. ``class_weighting`` with ``weight_by_label_freqs`` weighs classes, without
    changing the normaliser. ``label_smoothing`` e makes the target 1 - e + e / C for the labelled
    class and e / C for others. These three are not compared with the originals.

    Shapes: scores (*outer, C, *inner), labels outer x inner of any shape[, weights of as many] ->
    loss (), and, with a second top, the probabilities, shaped like the scores. C is at
    ``softmax_param.axis``.

    Raises:
        ConfigError: ``label_smoothing`` is not in [0, 1), or one of ``class_weighting`` and
            ``weight_by_label_freqs`` is given alone.
        ShapeError: There is not one label or weight for each place, or one class weight per class.
    """

    bottoms = Between(2, 3)
    tops = Between(1, 2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p = self.param.loss_param
        self.ignore_label = p.ignore_label if p.HasField("ignore_label") else None
        self.normalization = normalization_of(p, default="VALID")
        self.class_weights, self.smoothing = list(p.class_weighting), p.label_smoothing
        if bool(self.class_weights) != p.weight_by_label_freqs:
            message = "loss_param.class_weighting and weight_by_label_freqs: true go together"
            raise ConfigError(message)
        if not 0 <= self.smoothing < 1:
            message = f"loss_param.label_smoothing must be in [0, 1), it is {self.smoothing:g}"
            raise ConfigError(message)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.axis = ClassAxis.of(bottom[0], self.param.softmax_param.axis, bottom[1])
        self._check_weights(bottom)
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
        if len(bottom) > 2 or self.class_weights or self.smoothing:
            self.op = None  # backends know Caffe's loss only

    def allow_force_backward(self, bottom_index: int) -> bool:
        return bottom_index == 0

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, axis = self.xp, self.axis
        prob = softmax(self, bottom[0].read(), axis.axis)
        self.saved("prob", prob.shape).write(prob)
        labels = axis.labels(self, bottom[1])
        loss = -xp.log(xp.maximum(axis.pick(self, prob, labels), SMALLEST))
        if self.smoothing:
            every = xp.log(xp.maximum(self._spread(prob), SMALLEST))
            loss = (1 - self.smoothing) * loss - self.smoothing * xp.mean(every, axis=1)
        loss = xp.where(axis.known(labels), loss, float("nan"))
        weights = self._weights(bottom, labels)
        if weights is not None:
            loss = loss * weights
        valid = self._valid(labels)
        if valid is not None:
            loss = xp.where(valid, loss, 0.0)
        top[0].write(xp.sum(loss) / self._normalizer(bottom, valid))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        self.refuse_target_gradient(list(propagate_down))
        if any(propagate_down[2:]):
            message = "SoftmaxWithLoss has no gradient for its weights (bottom 2)"
            raise NetError(message)
        if not propagate_down[0]:
            return
        xp, axis, shape = self.xp, self.axis, bottom[0].shape
        labels = axis.labels(self, bottom[1])
        valid = self._valid(labels)
        scale = top[0].read_diff() / self._normalizer(bottom, valid)
        target = self.cast(axis.matches(self, labels))
        if self.smoothing:
            target = (1 - self.smoothing) * target + self.smoothing / axis.classes
        diff = self._spread(self.saved("prob", shape).read()) - target  # (outer, C, inner)
        weights = self._weights(bottom, labels)
        if weights is not None:
            diff = diff * xp.expand_dims(weights, axis=1)
        if valid is not None:
            diff = xp.where(xp.expand_dims(valid, axis=1), diff, 0.0)
        bottom[0].write_diff(xp.reshape(diff * scale, shape))

    def _spread(self, prob: Array) -> Array:
        return self.xp.reshape(prob, (self.axis.outer, self.axis.classes, self.axis.inner))

    def _valid(self, labels: Array) -> Array | None:
        return None if self.ignore_label is None else labels != self.ignore_label

    def _normalizer(self, bottom: Blobs, valid: Array | None) -> Array | float:
        if len(bottom) > 2 and self.normalization == "VALID":
            weights = self._sample_weights(bottom)
            counted = weights if valid is None else self.xp.where(valid, weights, 0.0)
            return at_least_one(self, self.xp.sum(counted))
        return normalizer(self, self.normalization, self.axis.outer, self.axis.places, valid)

    # -- weights -------------------------------------------------------------------------------

    def _check_weights(self, bottom: Blobs) -> None:
        if len(bottom) > 2 and bottom[2].count != self.axis.places:
            message = (
                f"the weights {bottom[2].shape} must be {self.axis.places}, "
                f"one for each label of {bottom[1].shape}"
            )
            raise ShapeError(message)
        if self.class_weights and len(self.class_weights) != self.axis.classes:
            message = (
                f"loss_param.class_weighting is given {len(self.class_weights)} times "
                f"for {self.axis.classes} classes"
            )
            raise ShapeError(message)

    def _weights(self, bottom: Blobs, labels: Array) -> Array | None:
        """Return what each place's loss is multiplied by, if anything. Shape: (outer, inner)."""
        weights = self._sample_weights(bottom) if len(bottom) > 2 else None
        if not self.class_weights:
            return weights
        xp = self.xp
        backend = self.device.backend
        table = self.constant(
            "class weights",
            self.axis.classes,
            lambda: xp.asarray(
                self.class_weights, dtype=backend.dtype(self.dtype), device=backend.array_device
            ),
        )
        inside = xp.minimum(xp.maximum(labels, 0), self.axis.classes - 1)
        chosen = xp.reshape(xp.take(table, xp.reshape(inside, (-1,)), axis=0), labels.shape)
        return chosen if weights is None else weights * chosen

    def _sample_weights(self, bottom: Blobs) -> Array:
        return self.xp.reshape(bottom[2].read(), (self.axis.outer, self.axis.inner))
