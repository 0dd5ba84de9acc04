"""What Scale and Bias share: a second operand, learned or a bottom, broadcast over other axes."""

from __future__ import annotations

from demitasse.blob import Blob
from demitasse.errors import ErrorCode, ShapeError
from demitasse.layers.checks import out_of_range

__all__ = ["learned_shape", "place"]


def learned_shape(blob: Blob, axis: int, num_axes: int, field: str) -> tuple[int, ...]:
    """Return the shape of a learned operand: ``num_axes`` axes of ``blob`` from ``axis`` on.

    Args:
        blob: The first operand.
        axis: First axis; negative counts from the end.
        num_axes: How many; 0 for a scalar, -1 for all that follow.
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


def place(blob: Blob, operand: Blob, axis: int) -> tuple[int, int, int]:
    """Return (outer, dim, inner): ``blob`` seen with all axes of ``operand`` as its middle one.

    Raises:
        ShapeError: The operand's axes are not those of the blob from ``axis`` on.
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
