"""Channels, the second axis of a blob: how many there are, and how to broadcast one value each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.errors import ErrorCode, ShapeError
from demitasse.layers.checks import wrong_shapes

__all__ = ["Channels", "through_normalization"]


@dataclass(frozen=True)
class Channels:
    """The channels of a blob (N, C, ...).

    Attributes:
        count: How many there are.
        rest: How many axes are after theirs.
    """

    count: int
    rest: int

    @classmethod
    def of(cls, blob: Blob, needed_by: str) -> Channels:
        """Return those of a blob.

        Raises:
            ShapeError: It has fewer than two axes.
        """
        if blob.num_axes < 2:
            raise wrong_shapes(needed_by, "a bottom (N, C, ...)", blob)
        return cls(blob.shape[1], blob.num_axes - 2)

    def need(self, count: int, blob: Blob, what: str) -> None:
        """Refuse another number of channels.

        Args:
            count: How many there must be.
            blob: Whose channels these are.
            what: What there are so many of, in the plural.

        Raises:
            ShapeError: There are not so many.
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
        """All axes but the channels': over which a channel is summed up."""
        return (0, *range(2, self.rest + 2))

    @property
    def spread(self) -> tuple[int, ...]:
        """The shape in which one value for each channel broadcasts: (1, C, 1, ...)."""
        return (1, self.count, *(1,) * self.rest)


def through_normalization(xp: Any, dy: Array, y: Array, axes: tuple[int, ...]) -> Array:
    """Return the gradient of y = (x - mean) / deviation by x, times the deviation.

    Mean and deviation are those of x over ``axes``, and depend on it, too.

    Shapes: dy, y any -> the same.
    """
    along = xp.mean(dy * y, axis=axes, keepdims=True)
    return dy - xp.mean(dy, axis=axes, keepdims=True) - along * y
