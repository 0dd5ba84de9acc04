"""Sums of long rows: split reductions, and gradients of biases.

The cut depends on sizes alone, never on the GPU, so a sum is the same everywhere and every time.
"""

from dataclasses import dataclass
from typing import Self

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import Engine

LEAST = 4096
"""Elements that a part has at least, unless its row has fewer; 8 for each thread of its block."""

ENOUGH = 2048  # parts of all rows together that keep the largest GPU busy

MULTIPLE = 4
"""Alignment of a part in elements, so that each part begins with a whole pack of 16 bytes."""


@dataclass(frozen=True)
class SplitReduction:
    """Rows, each cut into ``count`` parts of ``length`` elements; the last part may be shorter."""

    rows: int
    count: int
    length: int

    @classmethod
    def of(cls, rows: int, length: int) -> Self:
        """Cut rows of ``length`` elements."""
        wanted = max(1, min(length // LEAST, ENOUGH // max(1, rows)))
        each = max(1, -(-length // (wanted * MULTIPLE))) * MULTIPLE
        return cls(rows, max(1, -(-length // each)), each)

    @property
    def total(self) -> int:
        """Number of parts of all rows."""
        return self.rows * self.count

    @property
    def one(self) -> bool:
        """True if a row is a part, so that no second pass is needed."""
        return self.count == 1


class ChannelSums:
    """Adds sums of a gradient, and of its products with another array, to parameters' gradients.

    The sums of the gradient are wanted with ``flat``, the sums of the products with ``along``.
    Shapes: arrays (samples, channels, plane), sums (channels,).
    """

    def __init__(
        self, engine: Engine, dtype: str, sizes: tuple[int, int, int], *, flat: bool = True,
        along: bool = False,
    ) -> None:  # fmt: skip
        samples, channels, plane = sizes
        self.engine, self.dtype = engine, dtype
        self.parts = parts = SplitReduction.of(channels, samples * plane)
        wanted, add = (int(flat), int(along)), int(parts.one)
        self._sums = engine.row_blocks(
            *("sums", "channel_sums", dtype, parts.total, parts.length),
            *(channels, samples, plane, parts.count, parts.length, *wanted, add),
            reach=samples * channels * plane,
        )
        self._finish = engine.row_blocks(
            *("sums", "sum_parts", dtype, channels, parts.count),
            *(channels, parts.count, *wanted, 1),
        )

    def __call__(
        self, dy: Array, flat: Array | None, x: Array | None = None, along: Array | None = None
    ) -> None:
        """Add the sums of ``dy`` to ``flat`` and those of ``dy * x`` to ``along``.

        Nothing is read or written where something is None; it must not be wanted then.
        """
        # the kernels do not touch what stands for an array that is not there
        x, flat, along = (dy if array is None else array for array in (x, flat, along))
        if self.parts.one:
            self._sums(x, dy, flat, along)
            return
        one, two = self.engine.scratch(self.dtype, self.parts.total, self.parts.total)
        self._sums(x, dy, one, two)
        self._finish(one, two, flat, along)
