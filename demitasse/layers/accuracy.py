"""Accuracy: the share of positions whose label is among the ``top_k`` highest scores.

Source: Caffe, ``src/caffe/layers/accuracy_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.layers.base import Between, Blobs, Exactly, Layer
from demitasse.layers.checks import out_of_range
from demitasse.layers.helpers.classes import ClassAxis
from demitasse.layers.helpers.floors import at_least_one
from demitasse.layers.registry import register

__all__ = ["Accuracy"]


@register("Accuracy")
class Accuracy(Layer):
    """Count right predictions; a metric, without a gradient.

    Scores that equal the labelled one count as better, so ties count against the prediction. A
    label that is not a class is wrong here, and refused by nets. A labelled score that is not a
    number counts as the best, as in Caffe; ``believable`` tells.

    Shapes: scores (*outer, C, *inner), labels outer x inner of any shape -> accuracy (), and, with
    a second top, the accuracy of each class (C,). C is at ``axis``. A class without labels has 0.

    Raises:
        ConfigError: ``top_k`` is above the number of classes.
        ShapeError: There is not one label for each position.
    """

    bottoms = Exactly(2)
    tops = Between(1, 2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        p = self.param.accuracy_param
        self.top_k = p.top_k
        self.ignore_label = p.ignore_label if p.HasField("ignore_label") else None

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        self.axis = ClassAxis.of(bottom[0], self.param.accuracy_param.axis, bottom[1])
        if self.top_k > self.axis.classes:
            raise out_of_range(
                "accuracy_param.top_k", self.top_k, f"at most {self.axis.classes} classes"
            )
        top[0].reshape(())
        if len(top) > 1:
            top[1].reshape((self.axis.classes,))
        self.saved("not numbers", ())
        self.op = ops.Accuracy(
            dtype=self.dtype,
            bottom=bottom[0].shape,
            axis=self.axis.axis,
            top_k=self.top_k,
            ignore_label=self.ignore_label,
            tops=len(top),
        )

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, axis = self.xp, self.axis
        scores = axis.spread(self, bottom[0].read())
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
            top[0].write(xp.sum(right) / at_least_one(self, xp.sum(self.cast(valid))))
        else:
            top[0].write(xp.sum(right) / max(1, axis.positions))
        self.saved("not numbers", ()).write(xp.sum(self.cast(xp.isnan(own) & counted)))
        if len(top) > 1:
            seen = axis.matches(self, labels) & xp.expand_dims(counted, axis=1)
            each = self.cast(seen)  # (outer, C, inner)
            hits = xp.sum(each * xp.expand_dims(right, axis=1), axis=(0, 2))
            top[1].write(hits / at_least_one(self, xp.sum(each, axis=(0, 2))))

    def believable(self) -> bool:
        """Whether all labelled scores of the last pass were numbers; waits for the device."""
        return not self.saved("not numbers", ()).blob.cpu_data().any()
