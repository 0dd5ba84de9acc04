"""Resize images with the JIT kernel; ``portable`` in ``resize.py`` is the numpy version."""

from functools import lru_cache

import numpy as np

from demitasse.backends.kernels import resize as kernel
from demitasse.backends.kernels.language.structs import Arguments, Values
from demitasse.backends.kernels.language.values import HALF
from demitasse.io.data.images.samples import ONE, shares


@lru_cache(256)
def _columns(
    size: int, wanted: int, step: float | None, pixel_bytes: int, *, side_by_side: bool
) -> Values:
    """Return the kernel's arguments for columns: sizes, source offsets and weights."""
    first, _, share = shares(size, wanted, step)
    # The last pixel has no right neighbour: use the pixel before, with full weight on the last.
    left = np.minimum(first, max(size - 2, 0)).astype(np.int64)
    both = np.empty((wanted, 4, 2), np.uint16)
    both[:, :, 1] = np.where(left < first, ONE, share)[:, None]
    both[:, :, 0] = ONE - both[:, :, 1]
    inner = int(np.searchsorted(left, size - 2)) if side_by_side else 0
    return kernel.Columns.values(
        pixel_bytes=pixel_bytes if size > 1 else 0, count=wanted, table=left * pixel_bytes,
        shares=both, fast=inner // kernel.AT_ONCE * kernel.AT_ONCE,
    )  # fmt: skip


@lru_cache(256)
def _rows(size: int, wanted: int, step: float | None) -> tuple[Values, int]:
    """Return the kernel's arguments for rows, and the number of source rows needed."""
    first, second, share = shares(size, wanted, step, clamp=False)
    used = np.zeros(size, np.int64)
    used[first] = used[second] = 1
    place = np.cumsum(used) - 1
    needed = np.flatnonzero(used)
    values = kernel.Rows.values(
        needed=len(needed), table=needed, count=wanted, above=place[first], below=place[second],
        shares=share.astype(np.int64),
    )  # fmt: skip
    return values, len(needed)


def resized(image: np.ndarray, height: int, width: int, step: float | None) -> np.ndarray:
    """Resize an image; see ``resize_image``. Shapes: (C, H, W), uint8, any layout -> (C, h, w)."""
    channels, H, W = image.shape
    plane_bytes, row_bytes, pixel_bytes = image.strides
    planes = kernel.COLOURS if channels == kernel.COLOURS else 1
    side_by_side = planes == kernel.COLOURS == pixel_bytes and abs(plane_bytes) == 1
    line_bytes = -(-width // kernel.LANES) * kernel.LANES * HALF
    columns = _columns(W, width, step, pixel_bytes, side_by_side=side_by_side)
    rows, needed = _rows(H, height, step)
    between = np.empty(planes * needed * line_bytes, np.uint8)
    size = channels * height * width
    result = np.empty(size + kernel.LANES, np.uint8)[:size].reshape(channels, height, width)
    for first in range(0, channels, planes):
        values = kernel.Resize.values(
            image=image[first:], plane_bytes=plane_bytes, row_bytes=row_bytes, columns=columns,
            rows=rows, between=between, between_bytes=line_bytes, result=result[first:],
        )  # fmt: skip
        Arguments(values).run(kernel.resizer(planes), threads=1)
    return result
