"""Accuracy and SegAccuracy: metrics of class scores."""

from demitasse.backends import ops
from demitasse.layers.axes import ClassAxis
from demitasse.layers.base import Between, Blobs, Exactly, Layer
from demitasse.layers.checks import out_of_range, wrong_shapes
from demitasse.layers.registry import register_layer


@register_layer("Accuracy")
class Accuracy(Layer):
    """Count right predictions; a metric, without a gradient.

    The share of positions whose label is among the ``top_k`` highest scores. Scores that equal the
    labelled one count as better, so ties count against the prediction. A label that is not a class
    is wrong here, and refused by nets. A labelled score that is not a number counts as the best, as
    in Caffe; see ``believable``.

    Source: Caffe, ``src/caffe/layers/accuracy_layer.cpp``.
    Shapes: scores (*outer, C, *inner), labels outer x inner of any shape -> accuracy (), and, with
    a second top, the accuracy of each class (C,). C is at ``axis``. A class without labels has 0.

    Raises:
        ConfigError: ``top_k`` is above the number of classes.
        ShapeError: There is not one label for each position.
    """

    bottoms = Exactly(2)
    tops = Between(1, 2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.accuracy_param
        self.top_k = p.top_k
        self.ignore_label = p.ignore_label if p.HasField("ignore_label") else None

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        self.axis = ClassAxis.of(bottom[0], self.param.accuracy_param.axis, bottom[1])
        if self.top_k > self.axis.classes:
            expected = f"at most {self.axis.classes} classes"
            raise out_of_range("accuracy_param.top_k", self.top_k, expected)
        top[0].reshape(())
        if len(top) > 1:
            top[1].reshape((self.axis.classes,))
        self.saved("not numbers", ())
        choice = self.axis.axis, self.top_k, self.ignore_label
        self.op = ops.Accuracy(self.dtype, bottom[0].shape, *choice, len(top))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, axis = self.xp, self.axis
        scores = axis.view(self, bottom[0].read())
        labels = axis.labels(self, bottom[1])
        own = axis.pick(self, scores, labels)
        reached = scores >= xp.expand_dims(own, axis=1)
        better = xp.sum(self.cast(reached, "int64"), axis=1) - 1  # itself is among them
        counted = axis.known(labels)
        right = self.cast((better < self.top_k) & counted)  # (outer, inner)
        if self.ignore_label is not None:
            valid = labels != self.ignore_label
            counted = counted & valid
            right = xp.where(valid, right, 0.0)
            top[0].write(xp.sum(right) / xp.maximum(xp.sum(self.cast(valid)), 1.0))
        else:
            top[0].write(xp.sum(right) / max(1, axis.positions))
        self.saved("not numbers", ()).write(xp.sum(self.cast(xp.isnan(own) & counted)))
        if len(top) > 1:
            seen = axis.matches(self, labels) & xp.expand_dims(counted, axis=1)
            each = self.cast(seen)  # (outer, C, inner)
            hits = xp.sum(each * xp.expand_dims(right, axis=1), axis=(0, 2))
            top[1].write(hits / xp.maximum(xp.sum(each, axis=(0, 2)), 1.0))

    def believable(self) -> bool:
        """Return True if no labelled score of the last pass was NaN; synchronizes the device."""
        return not self.saved("not numbers", ()).blob.cpu_data().any()


@register_layer("SegAccuracy")
class SegAccuracy(Layer):
    """Compare the best class of every pixel with its label; a metric without a gradient.

    The top is accuracy, mean recall and mean intersection over union. Of equal scores the last is
    the best. The mean recall is over classes that have pixels. The mean intersection over union is
    over all classes; a class that is neither labelled nor predicted has 1. Pixels with an
    ``ignore_label`` do not count; any other label that is no class makes the result NaN, where the
    original aborts. Not compared with the original.

    Source: DeepLab (also in hszhao/PSPNet), ``src/caffe/layers/seg_accuracy_layer.cpp``,
    ``src/caffe/util/confusion_matrix.cpp``.
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
        scores = axis.view(self, bottom[0].read())
        labels = axis.labels(self, bottom[1])  # (N, pixels)
        counted = axis.known(labels)
        wrong = ~counted
        for label in self.param.seg_accuracy_param.ignore_label:
            counted = counted & (labels != label)
            wrong = wrong & (labels != label)
        true = self.cast(axis.matches(self, labels) & xp.expand_dims(counted, axis=1))
        last = axis.classes - 1 - xp.argmax(xp.flip(scores, axis=1), axis=1)
        guess = self.cast(axis.matches(self, last))
        guess = guess * xp.expand_dims(self.cast(counted), axis=1)
        hits = xp.sum(true * guess, axis=(0, 2))  # (C,), as the next ones
        labelled, guessed = xp.sum(true, axis=(0, 2)), xp.sum(guess, axis=(0, 2))
        accuracy = xp.sum(hits) / xp.maximum(xp.sum(labelled), 1.0)
        recall = xp.sum(hits / xp.maximum(labelled, 1.0))
        recall = recall / xp.maximum(xp.sum(self.cast(labelled > 0)), 1.0)
        union = labelled + guessed - hits
        overlap = xp.mean(xp.where(union == 0, 1.0, hits / xp.maximum(union, 1.0)))
        result = xp.stack([accuracy, recall, overlap])
        result = xp.where(xp.any(wrong), float("nan"), result)
        top[0].write(xp.reshape(result, (1, 1, 1, 3)))
