"""SegAccuracy: how well a segmentation fits: accuracy, mean recall, mean intersection over union.

Source: DeepLab (also in hszhao/PSPNet), ``src/caffe/layers/seg_accuracy_layer.cpp``,
``src/caffe/util/confusion_matrix.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import Blobs, Exactly, Layer
from demitasse.layers.checks import wrong_shapes
from demitasse.layers.helpers.classes import ClassAxis
from demitasse.layers.helpers.floors import at_least_one
from demitasse.layers.registry import register

__all__ = ["SegAccuracy"]


@register("SegAccuracy")
class SegAccuracy(Layer):
    """Compare the best class of every pixel with its label; a metric, without a gradient.

    The mean of the recall is over classes that have pixels, that of intersection over union over
    all, where it is 1 for a class that is neither labelled nor predicted. Pixels whose label is one
    of ``ignore_label`` do not count; any other label that is no class makes the result NaN, where
    the original aborts. Not compared with the original.

    Shapes: scores (N, C, H, W), labels (N, 1, H, W) -> (1, 1, 1, 3).

    Raises:
        ShapeError: The bottoms do not have these shapes.
    """

    bottoms = Exactly(2)
    tops = Exactly(1)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        scores, labels = bottom
        if scores.num_axes != 4 or labels.shape != (scores.shape[0], 1, *scores.shape[2:]):
            expected = "scores (N, C, H, W) and labels (N, 1, H, W)"
            raise wrong_shapes("SegAccuracy", expected, scores, labels)
        self.axis = ClassAxis.of(scores, 1, labels)
        top[0].reshape((1, 1, 1, 3))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, axis = self.xp, self.axis
        scores = axis.spread(self, bottom[0].read())
        labels = axis.labels(self, bottom[1])  # (N, pixels)
        counted = axis.known(labels)
        wrong = ~counted
        for label in self.param.seg_accuracy_param.ignore_label:
            counted = counted & (labels != label)
            wrong = wrong & (labels != label)
        true = self.cast(axis.matches(self, labels) & xp.expand_dims(counted, axis=1))
        guess = self.cast(axis.matches(self, xp.argmax(scores, axis=1)))
        guess = guess * xp.expand_dims(self.cast(counted), axis=1)
        hits = xp.sum(true * guess, axis=(0, 2))  # (C,), as the next ones
        labelled, guessed = xp.sum(true, axis=(0, 2)), xp.sum(guess, axis=(0, 2))
        accuracy = xp.sum(hits) / at_least_one(self, xp.sum(labelled))
        recall = xp.sum(hits / at_least_one(self, labelled))
        recall = recall / at_least_one(self, xp.sum(self.cast(labelled > 0)))
        union = labelled + guessed - hits
        overlap = xp.mean(xp.where(union == 0, 1.0, hits / at_least_one(self, union)))
        result = xp.stack([accuracy, recall, overlap])
        result = xp.where(xp.any(wrong), float("nan"), result)
        top[0].write(xp.reshape(result, (1, 1, 1, 3)))
