"""Resize images with a kernel of our own; ``resize.py`` has the same in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from demitasse.backends.kernels.language.structs import Arguments
from demitasse.backends.kernels.resize import AT_ONCE, COLOURS, LANES, Resize, resizer
from demitasse.data.images.samples import ONE, shares

__all__ = ["resized"]


@dataclass(frozen=True)
class _Tables:
    """What the kernel reads of the sizes of an image and of what becomes of it.

    Attributes:
        needed: The old rows that are used.
        above: Which of those each new row begins with.
        below: Which it ends with.
        down: The share of the latter.
        left: The old column that each new one begins with; there is one behind it if there are two.
        across: The shares of those two, four times. Shape: (width, 4, 2), uint16.
        inner: How many new columns come before those that need the last old one.
    """

    needed: np.ndarray
    above: np.ndarray
    below: np.ndarray
    down: np.ndarray
    left: np.ndarray
    across: np.ndarray
    inner: int


@lru_cache(256)
def _tables(H: int, W: int, height: int, width: int, step: float | None) -> _Tables:
    rows, columns = shares(H, height, step, clamp=False), shares(W, width, step)
    used = np.zeros(H, np.int64)
    used[rows.first] = used[rows.second] = 1
    place = np.cumsum(used) - 1
    # The last pixel has no right neighbour: it is the one of that before it, with all of the share.
    left = np.minimum(columns.first, max(W - 2, 0)).astype(np.int64)
    right_share = np.where(left < columns.first, ONE, columns.share)
    across = np.stack([ONE - right_share, right_share], 1).astype(np.uint16)
    return _Tables(
        needed=np.flatnonzero(used),
        above=place[rows.first],
        below=place[rows.second],
        down=rows.share.astype(np.int64),
        left=left,
        across=np.repeat(across[:, None], 4, 1),
        inner=int(np.searchsorted(left, W - 2)),
    )


def resized(image: np.ndarray, height: int, width: int, step: float | None) -> np.ndarray:
    """Return an image in another size; see ``resize_image``.

    Shapes: (C, H, W), uint8, in any layout -> (C, height, width).
    """
    channels, H, W = image.shape
    t = _tables(H, W, height, width, step)
    plane_bytes, row_bytes, pixel_bytes = image.strides
    planes = COLOURS if channels == COLOURS else 1
    side_by_side = planes == COLOURS == pixel_bytes and abs(plane_bytes) == 1
    line = -(-width // LANES) * LANES  # pixels
    between = np.empty((planes, len(t.needed), line), np.uint16)
    size = channels * height * width
    result = np.empty(size + LANES, np.uint8)[:size].reshape(channels, height, width)
    for first in range(0, channels, planes):
        values = Resize.values(
            image=image[first:],
            plane_bytes=plane_bytes,
            pixel_bytes=pixel_bytes if W > 1 else 0,
            rows=len(t.needed),
            row_table=t.needed * row_bytes,
            columns=width,
            column_table=t.left * pixel_bytes,
            shares=t.across,
            fast_columns=t.inner // AT_ONCE * AT_ONCE if side_by_side else 0,
            between=between,
            between_bytes=between.strides[1],
            lines=height,
            above_table=t.above * between.strides[1],
            below_table=t.below * between.strides[1],
            below_shares=t.down,
            result=result[first:],
        )
        Arguments(values).run(resizer(planes), threads=1)
    return result
