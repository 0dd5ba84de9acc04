"""Channels last: a private layout of blobs on a GPU, (N, *spatial, C) in place of (N, C, *spatial).

cuDNN's engines for tensor cores compute in this layout, and convert other arrays twice in every
convolution. With the setting ``channels_last``, convolutions write this layout, and later Steps
keep it if their kernels support it. All other code gets converted copies, or C order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from demitasse.backends.ops import Shape
from demitasse.backends.step import Operands


@dataclass(frozen=True, eq=False)
class ChannelsLast:
    """Samples of (plane, channels) elements, for a blob of shape (samples, channels, *spatial)."""

    shape: Shape
    samples: int
    channels: int
    plane: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.samples * self.channels * self.plane


@cache
def channels_last(shape: Shape) -> ChannelsLast | None:
    """Return the layout of a shape; None where this is C order, with one channel or one pixel."""
    channels, plane = (*shape[1:2], math.prod(shape[2:])) if len(shape) > 2 else (1, 1)
    last = channels > 1 and plane > 1 and shape[0] > 0
    return ChannelsLast(shape, shape[0], channels, plane) if last else None


def reads_channels_last(at: Operands) -> bool:
    """Return whether a Step before writes a bottom with channels last."""
    written = (at.layouts.written(blob.data_memory, blob.shape) for blob in at.bottom)
    return any(layout is not None for layout in written)
