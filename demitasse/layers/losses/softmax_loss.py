"""SoftmaxWithLoss and SoftmaxWithLossOHEM: multinomial logistic losses of a softmax."""

from collections.abc import Iterator

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.errors import ErrorCode, ShapeError
from demitasse.layers.axes import ClassAxis
from demitasse.layers.base import Between, Blobs
from demitasse.layers.checks import conflict, out_of_range, wrong_shapes
from demitasse.layers.losses.base import LossLayer, Normalization, Targets
from demitasse.layers.numerics import FLT_MIN, softmax
from demitasse.layers.registry import register_layer


@register_layer("SoftmaxWithLoss")
class SoftmaxWithLoss(LossLayer):
    """Compare scores with class labels, stably: the gradient needs no logarithm.

    The multinomial logistic loss of a softmax, -sum log(p_label) / normaliser. A label that is
    neither a class nor ``ignore_label`` makes the loss NaN. Beyond Caffe: a third bottom weighs the
    loss of each position; their sum over valid positions is then the normaliser VALID.
    ``class_weighting`` with ``weight_by_label_freqs`` weighs classes, without changing the
    normaliser; ``weight_by_label_freqs: false`` turns that off. ``label_smoothing`` e makes the
    target 1 - e + e / C for the labelled class and e / C for others. These three are not compared
    with the originals.

    Source: Caffe, ``src/caffe/layers/softmax_loss_layer.cpp``. Class weights: caffe-segnet-cudnn5
    (TimoSaemann), the same file; sample weights: pull request 5828 of BVLC/caffe; label smoothing:
    Szegedy et al., Rethinking the Inception Architecture for Computer Vision.
    Shapes: scores (*outer, C, *inner), labels outer x inner of any shape[, weights of as many] ->
    loss (), and, with a second top, the probabilities, shaped like the scores. C is at
    ``softmax_param.axis``.

    Raises:
        ConfigError: ``label_smoothing`` is not in [0, 1), or one of ``class_weighting`` and
            ``weight_by_label_freqs`` is given alone.
        ShapeError: There is not one label or weight for each position, or one class weight per
            class.
    """

    bottoms = Between(2, 3)
    tops = Between(1, 2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p = self.param.loss_param
        self.normalization = Normalization.of(p, default="VALID")
        off = p.HasField("weight_by_label_freqs") and not p.weight_by_label_freqs  # as in SegNet
        self.class_weights = [] if off else list(p.class_weighting)
        self.smoothing = p.label_smoothing
        if bool(self.class_weights) != p.weight_by_label_freqs:
            message = "loss_param.class_weighting and weight_by_label_freqs: true go together"
            raise conflict("loss_param.class_weighting", message)
        if not 0 <= self.smoothing < 1:
            raise out_of_range("loss_param.label_smoothing", self.smoothing, "a number in [0, 1)")

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.axis = ClassAxis.of(bottom[0], self.param.softmax_param.axis, bottom[1])
        if len(bottom) > 2 and bottom[2].count != self.axis.positions:
            expected = f"{self.axis.positions} weights, one for each label"
            raise wrong_shapes(self.type, expected, bottom[2])
        given, field = len(self.class_weights), "loss_param.class_weighting"
        if given not in {0, self.axis.classes}:
            message = (
                f"{field} is given {given} times, expected {self.axis.classes}, one for each class"
            )
            raise ShapeError(message, code=ErrorCode.COUNT_MISMATCH, field=field, got=given)
        prob = self.saved("prob", bottom[0].shape)
        if len(top) > 1:
            top[1].reshape_like(bottom[0])
            top[1].share_data(prob.blob)
        rule = self.normalization
        forks = len(bottom) > 2 or self.class_weights or self.smoothing
        self.op = None
        if not forks and rule.mode != "PRE_FIXED":  # backends implement Caffe's loss only
            sizes = bottom[0].shape, self.axis.axis
            self.op = ops.SoftmaxLoss(self.dtype, *sizes, rule.ignore_label, rule.mode, len(top))

    def losses(self, bottom: Blobs) -> Array:
        xp, axis = self.xp, self.axis
        prob = softmax(xp, bottom[0].read(), axis.axis)
        self.saved("prob", prob.shape).write(prob)
        labels = axis.labels(self, bottom[1])
        loss = -xp.log(xp.maximum(axis.pick(self, prob, labels), FLT_MIN))
        if self.smoothing:
            every = xp.log(xp.maximum(axis.view(self, prob), FLT_MIN))
            loss = (1 - self.smoothing) * loss - self.smoothing * xp.mean(every, axis=1)
        loss = xp.where(axis.known(labels), loss, float("nan"))
        weights = self._weights(bottom, labels)
        return loss if weights is None else loss * weights

    def gradients(self, bottom: Blobs) -> Iterator[Array]:
        axis, labels = self.axis, self.axis.labels(self, bottom[1])
        target = self.cast(axis.matches(self, labels))
        if self.smoothing:
            target = (1 - self.smoothing) * target + self.smoothing / axis.classes
        prob = self.saved("prob", bottom[0].shape).read()
        slope = axis.view(self, prob) - target  # (outer, C, inner)
        weights = self._weights(bottom, labels)
        yield slope if weights is None else slope * self.xp.expand_dims(weights, axis=1)

    def targets(self, bottom: Blobs) -> Targets:
        shape = self.axis.outer, self.axis.inner
        if len(bottom) == 2 or self.normalization.mode != "VALID":
            return self.normalization.targets(self, bottom[1], shape)
        valid = self.normalization.valid(self, bottom[1], shape)
        weights = self._sample_weights(bottom)
        if valid is not None:
            weights = self.xp.where(valid, weights, 0.0)
        return Targets(valid, self.xp.maximum(self.xp.sum(weights), 1.0))

    # -- weights -------------------------------------------------------------------------------

    def _weights(self, bottom: Blobs, labels: Array) -> Array | None:
        """Return the weight of each position's loss, or None. Shape: (outer, inner)."""
        weights = self._sample_weights(bottom) if len(bottom) > 2 else None
        if not self.class_weights:
            return weights
        xp, backend = self.xp, self.device.backend

        def make() -> Array:
            kind = backend.dtype(self.dtype)
            return xp.asarray(self.class_weights, dtype=kind, device=backend.array_device)

        table = self.constant("class weights", self.axis.classes, make)
        chosen = self.axis.look_up(self, table, labels)
        return chosen if weights is None else weights * chosen

    def _sample_weights(self, bottom: Blobs) -> Array:
        return self.xp.reshape(bottom[2].read(), (self.axis.outer, self.axis.inner))


@register_layer("SoftmaxWithLossOHEM")
class SoftmaxWithLossOHEM(SoftmaxWithLoss):
    """SoftmaxWithLoss with a third top, the loss of each position.

    The third top is not normalized, is 0 for ignored labels, and passes no gradient back. With
    three tops the second top has the probabilities, which the original leaves unwritten. Not
    compared with the original.

    Source: R-FCN (daijifeng001/caffe-rfcn), ``src/caffe/layers/softmax_loss_ohem_layer.cpp``; Intel
    Caffe, the same file.
    Shapes: scores (*outer, C, *inner), labels outer x inner of any shape[, weights of as many] ->
    loss ()[, probabilities, shaped like the scores[, losses, shaped like the labels]].

    Raises:
        ConfigError: As SoftmaxWithLoss.
        ShapeError: As SoftmaxWithLoss.
    """

    tops = Between(1, 3)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        if len(top) > 2:
            top[2].reshape_like(bottom[1])
            self.op = None  # backends implement Caffe's loss only

    def write_each(self, losses: Array, top: Blobs) -> None:
        if len(top) > 2:
            top[2].write(self.xp.reshape(losses, top[2].shape))
