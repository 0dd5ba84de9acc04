"""CenterLoss: half the mean squared distance of features to the centre of their class.

Centres learn by a rule of their own: each moves by the sum of its distances to the features of its
class, divided by their number plus 1.

Source: caffe-face (ydwen), ``src/caffe/layers/center_loss_layer.cpp``.
"""

from collections.abc import Iterator

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Flags
from demitasse.layers.checks import check_indices, positive, wrong_shapes
from demitasse.layers.losses.base import LossLayer
from demitasse.layers.registry import register_layer


@register_layer("CenterLoss")
class CenterLoss(LossLayer):
    """Pull the features of a class towards its centre, a parameter.

    The gradient of the centres is the rule above, not a derivative: it has neither the loss weight
    nor the batch size. Not compared with the original.

    Shapes: bottoms features (N, ...), K values each from ``axis`` on, labels (N,) -> loss ().
    Centres (num_output, K).

    Raises:
        ConfigError: ``num_output`` is missing or 0.
        ShapeError: There is not one label per item, the features have another size than before, or
            a label is no class (checked unless it is on a device only).
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p = self.param.center_loss_param
        self.classes = positive(p.num_output, "center_loss_param.num_output")
        self.size = bottom[0].count_from(bottom[0].canonical_axis(p.axis))
        self.add_param((self.classes, self.size), p.center_filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        n = bottom[0].shape[0]
        if bottom[0].count != n * self.size or bottom[1].count != n:
            expected = f"{self.size} features and a label for each item"
            raise wrong_shapes("CenterLoss", expected, *bottom)

    def losses(self, bottom: Blobs) -> Array:
        check_indices(bottom[1], self.classes, "classes")
        distance = self._distance(bottom)
        return self.xp.sum(distance * distance) / 2

    def gradients(self, bottom: Blobs) -> Iterator[Array]:
        yield self._distance(bottom)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        super().backward(top, propagate_down, bottom)
        if self.param_propagate_down(0):
            scatter_add, labels = self.device.backend.scatter_add, self._labels(bottom)
            count = scatter_add(self.full((labels.shape[0], 1), 1), labels, self.classes)
            total = scatter_add(self._distance(bottom), labels, self.classes)  # (classes, K)
            self.blobs[0].add_diff(-total / (count + 1))

    def _distance(self, bottom: Blobs) -> Array:
        """Return the features minus their centres. Shape: (N, K)."""
        xp = self.xp
        x = xp.reshape(bottom[0].read(), (bottom[0].shape[0], self.size))
        return x - xp.take(self.blobs[0].read(), self._labels(bottom), axis=0)

    def _labels(self, bottom: Blobs) -> Array:
        """Return the labels, clamped to the classes. Shape: (N,), int64."""
        xp = self.xp
        labels = self.cast(xp.reshape(bottom[1].read(), (-1,)), "int64")
        return xp.minimum(xp.maximum(labels, 0), self.classes - 1)
