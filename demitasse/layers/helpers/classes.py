"""What layers that compare class scores with labels share: the class axis and its neighbours.

A blob of scores is seen as (outer, C, inner), its labels as (outer, inner): whatever the shape of
the label blob, the counts must agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.errors import ErrorCode, ShapeError
from demitasse.layers.base import Layer

__all__ = ["ClassAxis"]


@dataclass(frozen=True)
class ClassAxis:
    """The sizes around the class axis of a blob of scores.

    Attributes:
        axis: Its index.
        outer: Product of the axes before it.
        classes: Its size.
        inner: Product of the axes after it.

    Raises:
        ShapeError: There is no class, and something to be of one.
    """

    axis: int
    outer: int
    classes: int
    inner: int

    def __post_init__(self) -> None:
        if not self.classes and self.positions:
            message = f"axis {self.axis} has no classes for {self.positions} labels"
            raise ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, axis=self.axis, got=0)

    @classmethod
    def of(cls, scores: Blob, axis: int, labels: Blob) -> ClassAxis:
        """Return the sizes for scores that ``labels`` belong to.

        Raises:
            ShapeError: There is no such axis, or not one label for each position.
        """
        axis = scores.canonical_axis(axis)
        outer, inner = scores.count_to(axis), scores.count_from(axis + 1)
        if labels.count != outer * inner:
            message = (
                f"the scores {scores.shape} with their classes on axis {axis} need "
                f"{outer} x {inner} labels, one for each position, got {labels.count} in "
                f"{labels.name!r} {labels.shape}; check the axis and the bottoms' order"
            )
            raise ShapeError(
                message,
                code=ErrorCode.SHAPE_MISMATCH,
                blob=labels.name,
                got=labels.count,
                expected=outer * inner,
            )
        return cls(axis, outer, scores.shape[axis], inner)

    @classmethod
    def of_samples(cls, scores: Blob, labels: Blob) -> ClassAxis:
        """Return the sizes for (N, ...) scores that are all of one sample's classes.

        Raises:
            ShapeError: There is not one label per sample.
        """
        n, classes = scores.shape[0], scores.count_from(1)
        if labels.count != n:
            message = (
                f"the scores {scores.shape} are of {n} samples, "
                f"but the labels {labels.name!r} {labels.shape} are {labels.count}"
            )
            raise ShapeError(
                message,
                code=ErrorCode.SHAPE_MISMATCH,
                blob=labels.name,
                got=labels.count,
                expected=n,
            )
        return cls(1, n, classes, 1)

    @property
    def positions(self) -> int:
        """How many labels there are."""
        return self.outer * self.inner

    def labels(self, layer: Layer, blob: Blob) -> Array:
        """Return the labels as integers, cut towards zero.

        Shapes: blob any -> (outer, inner), int64.
        """
        return layer.cast(layer.xp.reshape(blob.read(), (self.outer, self.inner)), "int64")

    def spread(self, layer: Layer, scores: Array) -> Array:
        """Return scores with three axes. Shapes: (*outer, C, *inner) -> (outer, C, inner)."""
        return layer.xp.reshape(scores, (self.outer, self.classes, self.inner))

    def known(self, labels: Array) -> Array:
        """Return where a label is one of the classes.

        Shapes: (outer, inner) -> the same, bool.
        """
        return (labels >= 0) & (labels < self.classes)

    def pick(self, layer: Layer, scores: Array, labels: Array) -> Array:
        """Return the score of the labelled class at each position; of the nearest for other labels.

        Shapes: scores (outer, C, inner) in any shape, labels (outer, inner) -> (outer, inner).
        """
        xp = layer.xp
        # on cupy, clip would wait for the device
        inside = xp.minimum(xp.maximum(labels, 0), self.classes - 1)
        index = inside * self.inner + self._starts(layer)
        flat = xp.reshape(scores, (-1,))
        return xp.reshape(xp.take(flat, xp.reshape(index, (-1,)), axis=0), labels.shape)

    def matches(self, layer: Layer, labels: Array) -> Array:
        """Return, for each class and position, whether it is the labelled one.

        Shapes: labels (outer, inner) -> (outer, C, inner), bool.
        """
        xp = layer.xp
        numbers = layer.constant(
            "classes", self.classes, lambda: xp.reshape(layer.arange(self.classes), (1, -1, 1))
        )
        return xp.expand_dims(labels, axis=1) == numbers

    def _starts(self, layer: Layer) -> Array:
        """Where, in the flattened scores, class 0 of each position is. Shape: (outer, inner)."""
        xp, step = layer.xp, self.classes * self.inner

        def make() -> Array:
            rows = xp.reshape(layer.arange(self.outer) * step, (-1, 1))
            return rows + xp.reshape(layer.arange(self.inner), (1, -1))

        return layer.constant("class_starts", self, make)
