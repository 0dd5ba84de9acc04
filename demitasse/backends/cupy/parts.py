"""Split reductions: long rows are summed by many blocks.

The cut depends on sizes alone, never on the GPU, so a sum is the same everywhere and every time.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Parts"]

LEAST = 4096
"""Elements that a part has at least, unless its row has fewer; 8 for each thread of its block."""

ENOUGH = 2048
"""Parts of all rows together that keep the largest GPU busy."""

MULTIPLE = 4
"""Alignment of a part in elements, so that each part begins with a whole pack of 16 bytes."""


@dataclass(frozen=True)
class Parts:
    """Rows of one length, cut into equal parts, of which the last may be shorter.

    Attributes:
        rows: Number of rows.
        count: Number of parts of a row.
        length: Elements of a part.
    """

    rows: int
    count: int
    length: int

    @classmethod
    def of(cls, rows: int, length: int) -> Parts:
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
