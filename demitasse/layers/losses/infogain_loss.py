"""InfogainLoss: -sum_k H[label, k] log(p_k) / normaliser, p the softmax of the scores."""

from collections.abc import Iterator

from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.core.paths import resolve_path
from demitasse.errors import DataError
from demitasse.io.proto import BlobProto, read_binary
from demitasse.layers.axes import ClassAxis
from demitasse.layers.base import Between, Blobs
from demitasse.layers.checks import missing, unsupported, wrong_shapes
from demitasse.layers.losses.base import LossLayer, Normalization, Targets, refuse_weights
from demitasse.layers.numerics import LOG_THRESHOLD, softmax
from demitasse.layers.registry import register_layer


@register_layer("InfogainLoss")
class InfogainLoss(LossLayer):
    """Softmax loss that weighs every pair of true and predicted class by a matrix.

    The matrix is the third bottom, or a BlobProto in the file ``source``. A label that is neither
    a class nor ``ignore_label`` makes the loss NaN.

    Source: Caffe, ``src/caffe/layers/infogain_loss_layer.cpp``.
    Shapes: scores (*outer, C, *inner), labels outer x inner of any shape, matrix of C x C values
    -> loss (), and, with a second top, the probabilities, shaped like the scores. C is at ``axis``.

    Raises:
        ConfigError: There is neither a third bottom nor ``source``, or ``loss_param`` has the
            deprecated ``normalize``, weighs classes or smooths labels.
        ShapeError: There is not one label for each position, or the matrix is not C x C.
    """

    bottoms = Between(2, 3)
    tops = Between(1, 2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p, loss = self.param.infogain_loss_param, self.param.loss_param
        refuse_weights(loss, self.type)
        if loss.HasField("normalize"):
            message = "loss_param.normalize is deprecated and not supported here; use normalization"
            raise unsupported("loss_param.normalize", message)
        self.normalization = Normalization.of(loss, default="VALID")
        self.matrix: Blob | None = None
        if len(bottom) < 3:
            if not p.HasField("source"):
                raise missing("infogain_loss_param.source", "name a matrix, or give a third bottom")
            self.matrix = Blob((), self.dtype, self.device, f"{self.name}.matrix")
            path = resolve_path(p.source, self.context.base_dir)
            self.matrix.from_proto(read_binary(path, BlobProto, DataError))

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.axis = ClassAxis.of(bottom[0], self.param.infogain_loss_param.axis, bottom[1])
        matrix = self._matrix_blob(bottom)
        if matrix.count != self.axis.classes**2:
            expected = f"a matrix of {self.axis.classes} x {self.axis.classes} values"
            raise wrong_shapes("InfogainLoss", expected, matrix)
        prob = self.saved("prob", bottom[0].shape)
        if len(top) > 1:
            top[1].reshape_like(bottom[0])
            top[1].share_data(prob.blob)

    def to(self, device: Device) -> None:
        super().to(device)
        if self.matrix is not None:
            self.matrix.to(device)

    def losses(self, bottom: Blobs) -> Array:
        xp, axis = self.xp, self.axis
        prob = softmax(xp, bottom[0].read(), axis.axis)
        self.saved("prob", prob.shape).write(prob)
        labels = axis.labels(self, bottom[1])
        log = xp.log(xp.maximum(axis.view(self, prob), LOG_THRESHOLD))
        loss = -xp.sum(self._rows(bottom, labels) * log, axis=1)  # (outer, inner)
        return xp.where(axis.known(labels), loss, float("nan"))

    def gradients(self, bottom: Blobs) -> Iterator[Array]:
        prob = self.axis.view(self, self.saved("prob", bottom[0].shape).read())
        rows = self._rows(bottom, self.axis.labels(self, bottom[1]))
        yield prob * self.xp.sum(rows, axis=1, keepdims=True) - rows

    def targets(self, bottom: Blobs) -> Targets:
        return self.normalization.targets(self, bottom[1], (self.axis.outer, self.axis.inner))

    def _rows(self, bottom: Blobs, labels: Array) -> Array:
        """Return the matrix row of each label. Shape: (outer, C, inner)."""
        xp, axis = self.xp, self.axis
        matrix = xp.reshape(self._matrix_blob(bottom).read(), (axis.classes, axis.classes))
        return xp.permute_dims(axis.look_up(self, matrix, labels), (0, 2, 1))

    def _matrix_blob(self, bottom: Blobs) -> Blob:
        return bottom[2] if self.matrix is None else self.matrix
