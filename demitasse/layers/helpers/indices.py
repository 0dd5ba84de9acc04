"""Blobs that hold indices: checked where that costs no transfer."""

from __future__ import annotations

from demitasse.blob import Blob
from demitasse.errors import ShapeError
from demitasse.memory import Head

__all__ = ["check_indices"]


def check_indices(blob: Blob, stop: int, what: str, *, wait: bool = False) -> None:
    """Refuse indices outside [0, ``stop``).

    Args:
        blob: The indices; fractions are cut off.
        stop: The first index that is too large.
        what: What they count, for the error.
        wait: Whether to fetch them from a device. Otherwise indices that exist on a device only
            are not looked at, since that would hold the device up.

    Raises:
        ShapeError: There are such indices.
    """
    at_device = blob.data_memory.head is Head.HEAD_AT_GPU and not blob.device.shares_host
    if not blob.count or (at_device and not wait):
        return
    host = blob.cpu_data()
    low, high = host.min(), host.max()
    if not (low > -1 and high < stop):  # also where one is not a number
        wrong = low if low <= -1 else high
        message = (
            f"bottom {blob.name!r} holds the index {wrong:g}, but there are {stop} {what}, "
            f"counted from 0"
        )
        raise ShapeError(message)
