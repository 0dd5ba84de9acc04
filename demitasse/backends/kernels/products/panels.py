"""How the columns of a product of matrices are divided."""

from __future__ import annotations

__all__ = ["WIDEST", "split_columns"]

WIDEST = 3
"""Vectors of a panel of columns at most."""


def split_columns(columns: int, width: int) -> list[tuple[int, int]]:
    """Divide columns into panels: vectors of each, and its first column. The last may reach over.

    Panels of one vector are the slowest.
    """
    panels, at = [], 0
    while at < columns:
        left = -(-(columns - at) // width)
        vectors = min(left, 2 if left == 4 else WIDEST)  # 4 is 2 + 2
        panels.append((vectors, at))
        at += vectors * width
    return panels
