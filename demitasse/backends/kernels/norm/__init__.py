"""Normalisation by the statistics of a batch, with the rectifier after it, in training.

The vectors are channels. Each image is read once for its mean and its sum of squared deviations.
Images are combined in a fixed order, so results do not depend on the number of threads. Backward
recomputes the rectifier's mask rather than keeping it. Each pass is two kernels, so no kernel has
a barrier.
"""

from __future__ import annotations

from demitasse.backends.kernels.images import Images

WIDEST = 4
"""Vectors of a block of channels at most: those of longer ones lie too far apart to walk along."""

WIDEST_REST = 8
"""The same where the last vector is a part of one, for want of other code."""


def takes(images: Images, width: int) -> bool:
    """Return whether images have whole vectors of contiguous channels, pixel behind pixel."""
    return images.has_whole_vectors(width) and _dense(images) and images.block <= WIDEST * width


def has_rest(images: Images, width: int) -> bool:
    """Return whether all channels lie side by side, and the last vector is a part of one.

    They are walked along, too, where a batch is measured: the library has slow code for most, and
    for none a ReLU with it.
    """
    last = images.block == images.shape[1] > width > 0 and images.shape[1] % width > 0
    return last and _dense(images) and images.block <= WIDEST_REST * width


def _dense(images: Images) -> bool:
    return images.row_stride == images.shape[3] * images.column_stride
