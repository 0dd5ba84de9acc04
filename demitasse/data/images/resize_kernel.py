"""Resize images with a kernel of our own; ``resize.py`` has the same in numpy."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.language.structs import Arguments
from demitasse.backends.kernels.resize import AT_ONCE, COLOURS, LANES, Resize, resizer
from demitasse.data.images.samples import ONE, shares

__all__ = ["resized"]


class _Rows(NamedTuple):
    """What the kernel reads of the heights.

    Attributes:
        needed: The old rows that are used.
        above: Which of those each new row begins with.
        below: Which it ends with.
        share: The share of the latter.
    """

    needed: np.ndarray
    above: np.ndarray
    below: np.ndarray
    share: np.ndarray


class _Columns(NamedTuple):
    """What the kernel reads of the widths.

    Attributes:
        left: The old column that each new one begins with; there is one behind it if there are two.
        shares: Those of the two, four times. Shape: (width, 4, 2), uint16.
        inner: How many new columns come before those that need the last old one.
    """

    left: np.ndarray
    shares: np.ndarray
    inner: int


@lru_cache(256)
def _rows(size: int, wanted: int, step: float | None) -> _Rows:
    first, second, share = shares(size, wanted, step, clamp=False)
    used = np.zeros(size, np.int64)
    used[first] = used[second] = 1
    place = np.cumsum(used) - 1
    return _Rows(np.flatnonzero(used), place[first], place[second], share.astype(np.int64))


@lru_cache(256)
def _columns(size: int, wanted: int, step: float | None) -> _Columns:
    first, _, share = shares(size, wanted, step)
    # The last pixel has no right neighbour: it is the one of that before it, with all of the share.
    left = np.minimum(first, max(size - 2, 0)).astype(np.int64)
    both = np.empty((wanted, 4, 2), np.uint16)
    both[:, :, 1] = np.where(left < first, ONE, share)[:, None]
    both[:, :, 0] = ONE - both[:, :, 1]
    return _Columns(left, both, int(np.searchsorted(left, size - 2)))


def resized(image: np.ndarray, height: int, width: int, step: float | None) -> np.ndarray:
    """Return an image in another size; see ``resize_image``.

    Shapes: (C, H, W), uint8, in any layout -> (C, height, width).
    """
    channels, H, W = image.shape
    rows, columns = _rows(H, height, step), _columns(W, width, step)
    plane_bytes, row_bytes, pixel_bytes = image.strides
    planes = COLOURS if channels == COLOURS else 1
    side_by_side = planes == COLOURS == pixel_bytes and abs(plane_bytes) == 1
    line = -(-width // LANES) * LANES  # pixels
    between = np.empty((planes, len(rows.needed), line), np.uint16)
    size = channels * height * width
    result = np.empty(size + LANES, np.uint8)[:size].reshape(channels, height, width)
    for first in range(0, channels, planes):
        values = Resize.values(
            image=image[first:],
            plane_bytes=plane_bytes,
            pixel_bytes=pixel_bytes if W > 1 else 0,
            rows=len(rows.needed),
            row_table=rows.needed * row_bytes,
            columns=width,
            column_table=columns.left * pixel_bytes,
            shares=columns.shares,
            fast_columns=columns.inner // AT_ONCE * AT_ONCE if side_by_side else 0,
            between=between,
            between_bytes=between.strides[1],
            lines=height,
            above_table=rows.above * between.strides[1],
            below_table=rows.below * between.strides[1],
            below_shares=rows.share,
            result=result[first:],
        )
        Arguments(values).run(resizer(planes), threads=1)
    return result
