"""The axis of Concat and Slice, which old nets give under another name."""

from __future__ import annotations

from demitasse.blob import Blob
from demitasse.errors import ConfigError, ShapeError
from demitasse.io.proto import ConcatParameter, SliceParameter

__all__ = ["legacy_axis"]


def legacy_axis(param: ConcatParameter | SliceParameter, old: str, blob: Blob) -> int:
    """Return ``axis``, which may be negative, or the field ``old``, which may not.

    Raises:
        ConfigError: Both are given.
        ShapeError: The blob has no such axis.
    """
    if not param.HasField(old):
        return blob.canonical_axis(param.axis)
    if param.HasField("axis"):
        message = f"axis and {old} are the same thing; give one of them"
        raise ConfigError(message)
    axis: int = getattr(param, old)
    if axis >= blob.num_axes:
        message = f"{old} {axis} is not an axis of bottom {blob.name!r} {blob.shape}"
        raise ShapeError(message)
    return axis
