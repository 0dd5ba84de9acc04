"""Layouts of blobs as the images that kernels take, and the choice of a layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TypeVar

from demitasse.backends.cpu.layout import Layout
from demitasse.backends.kernels.igemm import MOST_AXES
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.planes import takes as takes_planes
from demitasse.backends.step import Declined

C = TypeVar("C")
K = TypeVar("K")

IMAGE_AXES = 4


def images_of(layout: Layout) -> Images | None:
    """Return a layout of (N, C, H, W) as kernels know it.

    None where there are other axes, or channels lie neither side by side nor in blocks, or are
    padded.
    """
    images = folded_images(layout) if len(layout.shape) == IMAGE_AXES else None
    return images if images is not None and images.shape == layout.shape else None


def folded_images(layout: Layout) -> Images | None:
    """Return a layout of (N, C, *spatial) with the rows of all planes one after the other.

    Channels that fill a block up count. None where channels lie neither side by side nor in blocks,
    or there are no rows at equal distances.
    """
    axes = range(len(layout.shape))
    loops: dict[int, list[tuple[int, int]]] = {axis: [] for axis in axes}
    n, _, *deep, w = shape = layout.shape
    plain = [(axis, count, math.prod(shape[axis + 1 :])) for axis, count in enumerate(shape)]
    for axis, count, stride in plain if layout.plain else layout.loops:
        loops[axis].append((count, stride))
    channels = loops[1]
    if any(len(loops[axis]) > 1 for axis in axes if axis != 1) or not 1 <= len(channels) <= 2:
        return None
    block, side_by_side = channels[-1]
    rows = [loop for axis in axes[2:-1] for loop in loops[axis] if loop[0] > 1]
    even = all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(rows))
    if side_by_side != 1 or not even:
        return None
    c, h = math.prod(count for count, _ in channels), math.prod(deep)
    image, column = (loops[axis][0][1] if loops[axis] else layout.size for axis in (0, axes[-1]))
    row = rows[-1][1] if rows else layout.size
    if w == 1 < h:  # pixels follow each other as rows do
        column = row
    return Images((n, c, h, w), image, row, column, block, channels[0][1] if block < c else 0)


def volumes_of(layout: Layout) -> Images:
    """Return images of up to three axes with their channels last.

    Raises:
        Declined: They lie otherwise.
    """
    n, c, *spatial = shape = layout.shape
    strides = dict.fromkeys(range(len(shape)), layout.size)
    strides |= {axis: stride for axis, _, stride in layout.loops}
    blocks = len(layout.loops) > len({axis for axis, _, _ in layout.loops})
    last = not blocks and (c == 1 or strides[1] == 1)
    if not last or len(spatial) > MOST_AXES:
        message = f"{layout}; implicit GEMM takes channels that lie side by side"
        raise Declined(message)
    planes, rows, columns = [1] * (MOST_AXES - len(spatial)) + spatial
    deep, down, right = [layout.size] * (MOST_AXES - len(spatial)) + [
        strides[axis] for axis in range(2, len(shape))
    ]
    return Images((n, c, rows, columns), strides[0], down, right, c, 0, planes, deep)


def suitable_images(
    layout: Layout,
    takes: Callable[..., bool],
    *numbers: float,
    find: Callable[[Layout], Images | None] = images_of,
) -> Images:
    """Return the images of a layout; the last of the numbers is the floats of a vector.

    Raises:
        Declined: The kernel does not take the images.
    """
    images = find(layout)
    if images is None or not takes(images, *numbers):
        message = f"channels of {layout.shape} that fill no vectors of {numbers[-1]} here"
        raise Declined(message)
    return images


def images_in_vectors(layout: Layout, width: int) -> Images:
    """Return the images of a layout with vectors of so many channels.

    Raises:
        Declined: The layout has no such vectors.
    """
    return suitable_images(layout, Images.fits, width)


def plane_images(layout: Layout, width: int) -> Images:
    """Return a layout of (N, C, *spatial) as images for kernels that go through planes.

    Raises:
        Declined: Channels lie neither side by side nor in blocks nor in C order.
    """
    n, c, *spatial = layout.shape
    pixels = math.prod(spatial)

    def find(layout: Layout) -> Images | None:
        if layout.plain:
            return Images.in_blocks((n, c, 1, pixels), c if pixels == 1 and c >= width else 1)
        images = folded_images(layout) if spatial else None
        return images if images is not None and images.shape[1] == c else None

    return suitable_images(layout, takes_planes, width, find=find)


def first_suitable(candidates: Iterable[C], make: Callable[[C], K]) -> tuple[C, K]:
    """Return the first layout, or other candidate, that a kernel is made for, and the kernel.

    Raises:
        Declined: There is none; with the reason of the last.
    """
    reason = Declined("no layout suits the kernel")
    for candidate in dict.fromkeys(candidates):
        try:
            return candidate, make(candidate)
        except Declined as declined:
            reason = declined
    raise reason
