"""Views of a blob by its axes: classes, channels, and operands that are broadcast."""

from __future__ import annotations

from dataclasses import dataclass

from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.errors import ErrorCode, ShapeError
from demitasse.layers.base import Layer
from demitasse.layers.checks import out_of_range, wrong_shapes


@dataclass(frozen=True)
class ClassAxis:
    """Sizes around the class axis of a blob of scores.

    Scores are seen as (outer, C, inner), and their labels as (outer, inner), whatever the shape of
    the label blob.

    Attributes:
        axis: Index of the class axis.
        outer: Product of the axes before.
        classes: Size of the class axis, C.
        inner: Product of the axes after.

    Raises:
        ShapeError: There are labels, but no classes.
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
        """Return the sizes for scores and their labels.

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
        """Return the sizes for scores (N, ...) of which each row has the classes of one sample.

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
        """Number of labels."""
        return self.outer * self.inner

    def labels(self, layer: Layer, blob: Blob) -> Array:
        """Return the labels as integers, truncated towards zero.

        Shapes: blob any -> (outer, inner), int64.
        """
        return layer.cast(layer.xp.reshape(blob.read(), (self.outer, self.inner)), "int64")

    def spread(self, layer: Layer, scores: Array) -> Array:
        """Return scores with three axes. Shapes: (*outer, C, *inner) -> (outer, C, inner)."""
        return layer.xp.reshape(scores, (self.outer, self.classes, self.inner))

    def known(self, labels: Array) -> Array:
        """Return a mask of the labels that are classes.

        Shapes: (outer, inner) -> the same, bool.
        """
        return (labels >= 0) & (labels < self.classes)

    def pick(self, layer: Layer, scores: Array, labels: Array) -> Array:
        """Return the score of the labelled class at each position; invalid labels are clamped.

        Shapes: scores (outer, C, inner) in any shape, labels (outer, inner) -> (outer, inner).
        """
        xp = layer.xp
        # on cupy, clip synchronizes
        inside = xp.expand_dims(xp.minimum(xp.maximum(labels, 0), self.classes - 1), axis=1)
        return xp.take_along_axis(self.spread(layer, scores), inside, axis=1)[:, 0, :]

    def matches(self, layer: Layer, labels: Array) -> Array:
        """Return the one-hot labels.

        Shapes: labels (outer, inner) -> (outer, C, inner), bool.
        """
        xp = layer.xp
        numbers = layer.constant(
            "classes", self.classes, lambda: xp.reshape(layer.arange(self.classes), (1, -1, 1))
        )
        return xp.expand_dims(labels, axis=1) == numbers


@dataclass(frozen=True)
class Channels:
    """Channels of a blob (N, C, ...).

    Attributes:
        count: Number of channels.
        rest: Number of axes after the channels.
    """

    count: int
    rest: int

    @classmethod
    def of(cls, blob: Blob, needed_by: str) -> Channels:
        """Return the channels of a blob.

        Raises:
            ShapeError: The blob has fewer than two axes.
        """
        if blob.num_axes < 2:
            raise wrong_shapes(needed_by, "a bottom (N, C, ...)", blob)
        return cls(blob.shape[1], blob.num_axes - 2)

    def need(self, count: int, blob: Blob, what: str) -> None:
        """Refuse another number of channels.

        Args:
            count: Number of channels expected.
            blob: The blob.
            what: Parameters with one value per channel, in the plural.

        Raises:
            ShapeError: The blob has another number of channels.
        """
        if self.count != count:
            message = (
                f"bottom {blob.name!r} {blob.shape} has {self.count} channels, "
                f"but there are {what} for {count}"
            )
            raise ShapeError(
                message,
                code=ErrorCode.SHAPE_MISMATCH,
                blob=blob.name,
                got=self.count,
                expected=count,
            )

    @property
    def axes(self) -> tuple[int, ...]:
        """All axes except the channels, for sums over a channel."""
        return (0, *range(2, self.rest + 2))

    @property
    def spread(self) -> tuple[int, ...]:
        """Shape that broadcasts one value per channel: (1, C, 1, ...)."""
        return (1, self.count, *(1,) * self.rest)


def learned_shape(blob: Blob, axis: int, num_axes: int, field: str) -> tuple[int, ...]:
    """Return the shape of a learned operand: ``num_axes`` axes of ``blob`` from ``axis`` on.

    Args:
        blob: The first operand.
        axis: First axis; negative counts from the end.
        num_axes: Number of axes; 0 for a scalar, -1 for all that follow.
        field: Name of the message, for errors.

    Raises:
        ConfigError: ``num_axes`` is below -1.
        ShapeError: The blob has fewer axes.
    """
    start = blob.canonical_axis(axis)
    if num_axes < -1:
        raise out_of_range(f"{field}.num_axes", num_axes, "0 or more, or -1 for all axes")
    if num_axes == -1:
        return blob.shape[start:]
    if start + num_axes > blob.num_axes:
        message = (
            f"{field}.num_axes {num_axes} from axis {start} on is too large for "
            f"bottom {blob.name!r} {blob.shape}"
        )
        raise ShapeError(
            message, code=ErrorCode.OUT_OF_RANGE, field=f"{field}.num_axes", got=num_axes
        )
    return blob.shape[start : start + num_axes]


def broadcast_dims(blob: Blob, operand: Blob, axis: int) -> tuple[int, int, int]:
    """Return (outer, dim, inner): the sizes of ``blob`` before, along and after ``operand``.

    Raises:
        ShapeError: The operand's shape differs from the blob's axes from ``axis`` on.
    """
    start = blob.canonical_axis(axis) if operand.num_axes else 0
    end = start + operand.num_axes
    if blob.shape[start:end] != operand.shape:
        message = (
            f"the second operand {operand.name!r} {operand.shape} does not match "
            f"bottom {blob.name!r} {blob.shape} from axis {start} on"
        )
        raise ShapeError(
            message, code=ErrorCode.SHAPE_MISMATCH, blob=operand.name, got=operand.shape
        )
    return blob.count_to(start), operand.count, blob.count_from(end)
