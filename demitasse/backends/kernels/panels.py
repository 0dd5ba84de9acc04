"""Panels of the columns of a matrix product, and their filters in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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


def fill_panels(panels: np.ndarray, weights: np.ndarray, firsts: Sequence[int]) -> None:
    """Write filters of single pixels by panels, in each of which they lie side by side.

    Args:
        panels: Is written. Shape: (panels, channels, filters of a panel).
        weights: The filters in C order, at its beginning. Shape: (filters * channels,) at least.
        firsts: The first filter of each panel; panels may share filters.
    """
    _, channels, width = panels.shape
    order = np.add.outer(firsts, np.arange(width))
    by_filter = weights[: (order.max() + 1) * channels].reshape(-1, channels)
    panels[...] = by_filter[order].transpose(0, 2, 1)
