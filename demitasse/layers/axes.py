"""Views of a blob by its axes: classes, channels, and operands that are broadcast."""

from __future__ import annotations

from dataclasses import dataclass

from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.layers.base import Layer
from demitasse.layers.checks import no_such_axis, out_of_range, shape_mismatch, wrong_shapes


@dataclass(frozen=True)
class ClassAxis:
    """Sizes before, along and after the class axis of a blob of scores.

    Scores are seen as (outer, C, inner), and their labels as (outer, inner), whatever the shape of
    the label blob.

    Raises:
        ShapeError: There are labels, and no classes.
    """

    axis: int
    outer: int
    classes: int
    inner: int

    def __post_init__(self) -> None:
        if not self.classes and self.positions:
            message = f"axis {self.axis} has no classes for {self.positions} labels"
            raise shape_mismatch(message, axis=self.axis, got=0)

    @classmethod
    def of(cls, scores: Blob, axis: int, labels: Blob) -> ClassAxis:
        """Return the sizes for scores and their labels, one for each position."""
        axis = scores.canonical_axis(axis)
        outer, inner = scores.count_to(axis), scores.count_from(axis + 1)
        if labels.count != outer * inner:
            message = (
                f"the scores {scores.shape} with their classes on axis {axis} need "
                f"{outer} x {inner} labels, one for each position, got {labels.count} in "
                f"{labels.name!r} {labels.shape}; check the axis and the bottoms' order"
            )
            expected = outer * inner
            raise shape_mismatch(message, blob=labels.name, got=labels.count, expected=expected)
        return cls(axis, outer, scores.shape[axis], inner)

    @classmethod
    def of_samples(cls, scores: Blob, labels: Blob) -> ClassAxis:
        """Return the sizes for scores (N, ...) of which each row has the classes of one sample."""
        n, classes = scores.shape[0], scores.count_from(1)
        if labels.count != n:
            message = (
                f"the scores {scores.shape} are of {n} samples, "
                f"but the labels {labels.name!r} {labels.shape} are {labels.count}"
            )
            raise shape_mismatch(message, blob=labels.name, got=labels.count, expected=n)
        return cls(1, n, classes, 1)

    @property
    def positions(self) -> int:
        """Number of labels."""
        return self.outer * self.inner

    def labels(self, layer: Layer, blob: Blob) -> Array:
        """Return the labels, truncated towards zero. Shapes: any -> (outer, inner), int64."""
        return layer.cast(layer.xp.reshape(blob.read(), (self.outer, self.inner)), "int64")

    def view(self, layer: Layer, scores: Array) -> Array:
        """Return scores with three axes. Shapes: (*outer, C, *inner) -> (outer, C, inner)."""
        return layer.xp.reshape(scores, (self.outer, self.classes, self.inner))

    def known(self, labels: Array) -> Array:
        """Return a mask of the labels that are classes. Shapes: (outer, inner) -> the same."""
        return (labels >= 0) & (labels < self.classes)

    def pick(self, layer: Layer, scores: Array, labels: Array) -> Array:
        """Return the score of the labelled class at each position; invalid labels are clamped.

        Shapes: scores (outer, C, inner) in any shape, labels (outer, inner) -> (outer, inner).
        """
        xp = layer.xp
        inside = xp.expand_dims(self._clamped(layer, labels), axis=1)
        return xp.take_along_axis(self.view(layer, scores), inside, axis=1)[:, 0, :]

    def look_up(self, layer: Layer, table: Array, labels: Array) -> Array:
        """Return the row of the labelled class at each position; invalid labels are clamped.

        Shapes: table (C, *row), labels (outer, inner) -> (outer, inner, *row).
        """
        xp = layer.xp
        rows = xp.take(table, xp.reshape(self._clamped(layer, labels), (-1,)), axis=0)
        return xp.reshape(rows, (*labels.shape, *table.shape[1:]))

    def _clamped(self, layer: Layer, labels: Array) -> Array:
        # on cupy, clip synchronizes
        return layer.xp.minimum(layer.xp.maximum(labels, 0), self.classes - 1)

    def matches(self, layer: Layer, labels: Array) -> Array:
        """Return the one-hot labels. Shapes: (outer, inner) -> (outer, C, inner), bool."""
        xp = layer.xp
        numbers = layer.constant(
            "classes", self.classes, lambda: xp.reshape(layer.arange(self.classes), (1, -1, 1))
        )
        return xp.expand_dims(labels, axis=1) == numbers


@dataclass(frozen=True)
class Channels:
    """Number of channels of a blob (N, C, ...), and of the axes after the channels."""

    count: int
    rest: int

    @classmethod
    def of(cls, blob: Blob, needed_by: str) -> Channels:
        """Return the channels of a blob; raise ShapeError for fewer than two axes."""
        if blob.num_axes < 2:
            raise wrong_shapes(needed_by, "a bottom (N, C, ...)", blob)
        return cls(blob.shape[1], blob.num_axes - 2)

    def need(self, count: int, blob: Blob, what: str) -> None:
        """Raise ShapeError for other channels than those of ``what``, parameters in the plural."""
        if self.count != count:
            message = (
                f"bottom {blob.name!r} {blob.shape} has {self.count} channels, "
                f"but there are {what} for {count}"
            )
            raise shape_mismatch(message, blob=blob.name, got=self.count, expected=count)

    @property
    def axes(self) -> tuple[int, ...]:
        """All axes except the channels, for sums over a channel."""
        return (0, *range(2, self.rest + 2))

    @property
    def channel_shape(self) -> tuple[int, ...]:
        """Shape that broadcasts one value per channel: (1, C, 1, ...)."""
        return (1, self.count, *(1,) * self.rest)


def learned_shape(blob: Blob, axis: int, num_axes: int, field: str) -> tuple[int, ...]:
    """Return the shape of a learned operand: ``num_axes`` axes of ``blob`` from ``axis`` on.

    0 axes are a scalar, -1 all that follow. ``field`` is the name of the message, for errors.
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
        raise no_such_axis(message, field=f"{field}.num_axes", got=num_axes)
    return blob.shape[start : start + num_axes]


def broadcast_dims(blob: Blob, operand: Blob, axis: int) -> tuple[int, int, int]:
    """Return (outer, dim, inner): the sizes of ``blob`` before, along and after ``operand``."""
    start = blob.canonical_axis(axis) if operand.num_axes else 0
    end = start + operand.num_axes
    if blob.shape[start:end] != operand.shape:
        message = (
            f"the second operand {operand.name!r} {operand.shape} does not match "
            f"bottom {blob.name!r} {blob.shape} from axis {start} on"
        )
        raise shape_mismatch(message, blob=operand.name, got=operand.shape)
    return blob.count_to(start), operand.count, blob.count_from(end)
