"""Pixels divided by their lengths, and their channels scaled: what SSD calls Normalize.

As many pixels as a vector has elements get their roots and quotients together.
"""

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel, each_vector, load, store, threads_for
from demitasse.backends.kernels.image_fields import BlockFields
from demitasse.backends.kernels.images import Images, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Condition,
    Vector,
    Word,
    chunk,
    fma,
    horizontal_sum,
    minimum,
    root,
)
from demitasse.backends.kernels.tuning import Tuning

FEWEST_EACH = 1 << 13
"""Elements of a thread at least."""


class L2NormalizeFields(Struct):
    """Images whose pixels follow each other; the results may be in the same memory."""

    x: BlockFields
    y: Output
    scales: Address
    """One scale for each channel."""
    eps: Address
    """Added to a sum of squares."""
    pixels: Word
    """Pixels of an image."""
    pixel_stride: Word


@L2NormalizeFields.kernel("lengths")
def _kernel(k: Kernel, f: L2NormalizeFields) -> None:
    width, x = k.width, f.x
    eps, one, sums = k.broadcast(f.eps), k.constant(1.0), k.scratch(1)
    block_bytes, pixel_bytes = x.block_stride * FLOAT, f.pixel_stride * FLOAT
    groups = (f.pixels + (width - 1)) // width
    begin, end = chunk(x.images * groups, *k.thread())
    with k.loop(end, begin) as group:
        image, first = group.i // groups, group.i % groups * width
        offset = (image * x.image_stride + first * f.pixel_stride) * FLOAT
        count = minimum(f.pixels - first, width)
        with k.loop(count) as pixel:
            source = x.at + offset + pixel.i * pixel_bytes
            with k.loop(x.blocks, vectors=[k.constant(0.0)]) as block:
                at = source + block.i * block_bytes

                def add(place: Word, some: Condition | None, total: Vector) -> list[Vector]:
                    value = load(k, at + place, some)
                    return [fma(value, value, total)]

                block.vectors = each_vector(k, x.block_channels, add, vectors=block.vectors)
            total = horizontal_sum(block.vectors[0])
            k.masked_store(total, sums + pixel.i * FLOAT, k.lane_mask(k.word(1)))
        k.store(one / root(k.load(sums) + eps), sums)
        with k.loop(count) as pixel, k.loop(x.blocks) as block:
            by = k.broadcast(sums + pixel.i * FLOAT)
            here = offset + pixel.i * pixel_bytes + block.i * block_bytes
            scales = f.scales + block.i * x.block_channels * FLOAT

            def scale(place: Word, some: Condition | None) -> None:
                unit = load(k, x.at + here + place, some) * by
                store(k, unit * load(k, scales + place, some), f.y + here + place, some)

            each_vector(k, x.block_channels, scale)


def takes(images: Images, width: int) -> bool:
    """Return whether images have contiguous channels, all of them or whole vectors, and pixels."""
    return images.has_runs(width) and images.is_even


class L2Normalize(BoundKernel):
    """y = s x / sqrt(sum of x^2 + eps), the sum over the channels of a pixel.

    A call takes x and y, which may be the same memory and lie as ``images`` says.

    Attributes:
        scales: One for each channel; to be filled before a call. Shape: (C,).
    """

    def __init__(self, images: Images, eps: float, tuning: Tuning) -> None:
        n, c, h, w = images.shape
        need_layout(takes(images, tuning.width), images)
        self.scales = aligned(c)
        values = L2NormalizeFields.values(
            x=BlockFields.of(images),
            scales=self.scales,
            eps=np.array([eps], np.float32),
            pixels=h * w,
            pixel_stride=images.column_stride if w > 1 else images.row_stride,
        )
        threads = threads_for(tuning, n * c * h * w, FEWEST_EACH)
        super().__init__("lengths", _kernel(tuning.width), values, tuning, threads)
