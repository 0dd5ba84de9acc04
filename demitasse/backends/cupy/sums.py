"""Sums of long rows: split reductions, and gradients of biases.

The cut depends on sizes alone, never on the GPU, so a sum is the same everywhere and every time.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import PACK, Engine
from demitasse.backends.storage import ARRAYS, array_dtype, computed

LEAST = 4096
"""Elements that a part has at least, unless its row has fewer; 8 for each thread of its block."""

ENOUGH = 2048  # parts of all rows that keep the largest GPU busy

PACKS = 8
"""Packs of adjacent channels that a block adds up with channels last; as in ``common.cuh``."""

MULTIPLE = 4
"""Alignment of a part in elements, so that each part begins with a whole pack of 16 bytes; twice as
many elements of 16 bits."""


@dataclass(frozen=True)
class SplitReduction:
    """Rows, each cut into ``count`` parts of ``length`` elements; the last part may be shorter.

    A block adds up the parts of ``side`` adjacent rows.
    """

    rows: int
    count: int
    length: int
    side: int = 1

    @classmethod
    def of(cls, rows: int, length: int, dtype: str = "float32") -> Self:
        """Cut rows of ``length`` elements."""
        wanted = max(1, min(length // LEAST, ENOUGH // max(1, rows)))
        multiple = 2 * MULTIPLE if dtype in ARRAYS else MULTIPLE
        each = max(1, -(-length // (wanted * multiple))) * multiple
        return cls(rows, max(1, -(-length // each)), each)

    @classmethod
    def of_channels(cls, sizes: tuple[int, int, int], dtype: str, *, last: bool) -> Self:
        """Cut the channels of an array of (samples, channels, plane) elements.

        With ``last``, rows are channels, and a part is some positions of adjacent channels.
        """
        samples, channels, plane = sizes
        many = samples * plane
        if not last:
            return cls.of(channels, many, dtype)
        lanes = PACK // np.dtype(array_dtype(dtype)).itemsize
        side = PACKS * (1 if channels % lanes else lanes)
        strips = -(-channels // side)
        wanted = max(1, min(many * side // LEAST, ENOUGH // max(1, strips)))
        length = max(1, -(-many // wanted))
        return cls(channels, max(1, -(-many // length)), length, side)

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks of a kernel, and elements of each."""
        return -(-self.rows // self.side) * self.count, self.length * self.side

    @property
    def total(self) -> int:
        """Number of parts of all rows."""
        return self.rows * self.count

    @property
    def one(self) -> bool:
        """True if a row is a part, so that no second pass is needed."""
        return self.count == 1


Total = tuple[Array, bool]
"""A parameter's gradient: its array, and True if it has contents that sums are added to."""


def add_flags(flat: Total | None, along: Total | None) -> int:
    """Return the bits of kernels: 1 for sums that are added to ``flat``, 2 for ``along``."""
    return int(bool(flat and flat[1])) + 2 * int(bool(along and along[1]))


class ChannelSums:
    """Computes sums of a gradient, and of its products with another array, for parameters.

    The sums of the gradient are wanted with ``flat``, the sums of the products with ``along``.
    Shapes: arrays (samples, channels, plane), or (samples, plane, channels) with ``last``;
        sums (channels,).
    """

    def __init__(
        self, engine: Engine, dtype: str, sizes: tuple[int, int, int], *, flat: bool = True,
        along: bool = False, last: bool = False,
    ) -> None:  # fmt: skip
        samples, channels, plane = sizes
        self.engine, self.dtype = engine, computed(dtype)
        self.parts = parts = SplitReduction.of_channels(sizes, dtype, last=last)
        wanted = (int(flat), int(along))
        cut, size = (parts.count, parts.length), samples * channels * plane
        name = "strip_sums" if last else "channel_sums"
        places = (samples * plane,) if last else (samples, plane)
        first = ("sums", name, dtype, *parts.blocks, channels, *places)
        second = ("sums", "sum_parts", self.dtype, channels, parts.count, channels, parts.count)
        flags = [(*wanted, add) for add in range(4)]
        self._sums = [engine.row_blocks(*first, *cut, *each, reach=size) for each in flags]
        self._finish = [engine.row_blocks(*second, *each) for each in flags]

    def __call__(
        self, dy: Array, flat: Total | None, x: Array | None = None, along: Total | None = None
    ) -> None:
        """Write or add the sums of ``dy`` to ``flat``, and those of ``dy * x`` to ``along``.

        An array may be None if it was not wanted.
        """
        add = add_flags(flat, along)
        # the kernels do not use placeholders for missing arrays
        x = dy if x is None else x
        totals = [None if total is None else total[0] for total in (flat, along)]
        if self.parts.one:
            self._sums[add](x, dy, *(dy if one is None else one for one in totals))
            return
        parts = self.engine.scratch(self.dtype, self.parts.total, self.parts.total)
        self._sums[0](x, dy, *parts)
        self._finish[add](*parts, *(parts[0] if one is None else one for one in totals))
