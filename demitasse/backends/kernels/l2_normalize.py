"""Pixels divided by their lengths, and their channels scaled: what SSD calls Normalize.

As many pixels as a vector has elements get their roots and quotients together.
"""

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.image_fields import BlockFields
from demitasse.backends.kernels.images import Images, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Output, Struct
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Word,
    chunk,
    fma,
    horizontal_sum,
    minimum,
    root,
)
from demitasse.backends.kernels.tuning import TunedKernel, Tuning

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
def _kernel(k: Kernel, f: L2NormalizeFields, *, rest: bool) -> None:
    """Write the kernel; with ``rest``, a block's last channels fill no vector."""
    width, x = k.width, f.x
    none, eps, one, sums = k.constant(0.0), k.broadcast(f.eps), k.constant(1.0), k.scratch(1)
    whole_bytes = x.block_channels // width * k.vector_bytes
    some = k.lane_mask(x.block_channels % width)
    block_bytes, scales_bytes = x.block_stride * FLOAT, x.block_channels * FLOAT
    groups = (f.pixels + (width - 1)) // width
    begin, end = chunk(x.images * groups, *k.thread())
    with k.loop(end, begin) as group:
        image, first = group.i // groups, group.i % groups * width
        offset = (image * x.image_stride + first * f.pixel_stride) * FLOAT
        count, pixel_bytes = minimum(f.pixels - first, width), f.pixel_stride * FLOAT
        with k.loop(count) as pixel:
            source = x.at + offset + pixel.i * pixel_bytes
            with k.loop(x.blocks, vectors=[none]) as block:
                at = source + block.i * block_bytes
                with k.loop(whole_bytes, 0, k.vector_bytes, vectors=block.vectors) as place:
                    value = k.load(at + place.i)
                    place.vectors = [fma(value, value, place.vectors[0])]
                [total] = place.vectors
                if rest:
                    value = k.masked_load(at + whole_bytes, some)
                    total = fma(value, value, total)
                block.vectors = [total]
            k.masked_store(
                horizontal_sum(block.vectors[0]), sums + pixel.i * FLOAT, k.lane_mask(k.word(1))
            )
        k.store(one / root(k.load(sums) + eps), sums)
        with k.loop(count) as pixel:
            by = k.broadcast(sums + pixel.i * FLOAT)
            here = offset + pixel.i * pixel_bytes
            with k.loop(x.blocks) as block:
                at, scales = here + block.i * block_bytes, f.scales + block.i * scales_bytes
                with k.loop(whole_bytes, 0, k.vector_bytes) as place:
                    unit = k.load(x.at + at + place.i) * by
                    k.store(unit * k.load(scales + place.i), f.y + at + place.i)
                if rest:
                    at = at + whole_bytes
                    unit = k.masked_load(x.at + at, some) * by
                    scale = k.masked_load(scales + whole_bytes, some)
                    k.masked_store(unit * scale, f.y + at, some)


def takes(images: Images, width: int) -> bool:
    """Return whether images have contiguous channels, all of them or whole vectors, and pixels."""
    return images.has_runs(width) and images.is_even


class L2Normalize(TunedKernel):
    """y = s x / sqrt(sum of x^2 + eps), the sum over the channels of a pixel.

    Args:
        images: Layout of x and of y.

    Attributes:
        scales: One for each channel; to be filled before a call. Shape: (C,).
    """

    kernel = "lengths"

    def __init__(self, images: Images, eps: float, tuning: Tuning) -> None:
        n, c, h, w = images.shape
        need_layout(takes(images, tuning.width), images)
        self.scales, self._eps = aligned(c), aligned(1)
        self._eps[0] = eps
        self.tuning = tuning
        self._threads = max(1, min(tuning.threads, n * c * h * w // FEWEST_EACH))
        self._kernel = _kernel(tuning.width, rest=bool(images.block % tuning.width))
        self._arguments = Arguments(
            L2NormalizeFields.values(
                x=BlockFields.of(images),
                scales=self.scales,
                eps=self._eps,
                pixels=h * w,
                pixel_stride=images.column_stride if w > 1 else images.row_stride,
            )
        )

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write ``y``, which may be ``x``; both lie as ``images`` says."""
        self._arguments.run(self._kernel, self._threads, {"x.at": x, "y": y})
