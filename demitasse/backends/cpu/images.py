"""Layouts of blobs as the images that kernels take, and the choice of a layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.kernels.igemm import MOST_AXES
from demitasse.backends.kernels.images import Images
from demitasse.backends.step import Declined, decline_if

C = TypeVar("C")
K = TypeVar("K")

IMAGE_AXES = 4


def images_of(layout: Layout) -> Images | None:
    """Return a layout of (N, C, *spatial) with the rows of all planes one after the other.

    Channels that fill a pixel up count. None where channels are neither last nor in C order.
    """
    n, _, *spatial = layout.shape
    shape = n, layout.padded[1], math.prod(spatial[:-1]), math.prod(spatial[-1:])
    if layout.plain:
        return Images.in_order(shape)
    places = layouts.stored(layout, bf16=False) if layout.bf16 else layout
    last = places is layouts.channels_last(layout.shape, layout.padded[1])
    return Images.channels_last(shape, bf16=layout.bf16) if last else None


def volumes_of(layout: Layout, *, bf16: bool = False) -> Images:
    """Return images of up to three axes with their channels last, of float32 or also ``bf16``.

    Raises:
        Declined: They lie otherwise.
    """
    n, c, *spatial = shape = layout.shape
    places = layouts.stored(layout, bf16=False) if bf16 else layout
    last = places is layouts.innermost(shape, 1) and len(spatial) <= MOST_AXES
    decline_if(not last, f"{layout}; implicit GEMM takes channels that lie side by side")
    planes, rows, columns = [1] * (MOST_AXES - len(spatial)) + spatial
    plane = rows * columns * c
    return Images(
        (n, c, rows, columns), planes * plane, columns * c, c, planes=planes, plane_stride=plane,
        bf16=layout.bf16,
    )  # fmt: skip


def suitable_images(
    layout: Layout, width: int, takes: Callable[[Images, int], bool] = Images.fits, *,
    padded: bool = False, bf16: bool = False,
) -> Images:  # fmt: skip
    """Return the images of a layout that a kernel ``takes`` with vectors of ``width`` floats.

    With ``padded``, channels that fill a pixel up count. Images are of float32, unless the kernel
    takes ``bf16``, too.

    Raises:
        Declined: The kernel does not take the images.
    """
    images = images_of(layout) if padded or layout.padded == layout.shape else None
    if images is None or (images.bf16 and not bf16) or not takes(images, width):
        message = f"channels of {layout.shape} that fill no vectors of {width} here"
        raise Declined(message)
    return images


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
