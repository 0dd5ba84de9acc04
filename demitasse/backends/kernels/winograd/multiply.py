"""The products at the points: data, filters and sums, of which two give the third."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.language.kernel import WIDE, Kernel, Value
from demitasse.backends.kernels.winograd.strips import Block
from demitasse.backends.kernels.winograd.tiling import Tiling

__all__ = ["PRODUCTS", "Panel", "panels", "product_values"]

PRODUCTS = (
    "data_row", "data_point", "filters", "filter_point", "filter_lane", "sums", "sum_row",
    "sum_point", "channels", "panels", "panel",
)  # fmt: skip
"""Fields of a kernel that multiplies. Elements from one tile of the data to the next, and from one
point to the next. The address of the filters, elements from one point to the next, and from one
lane's to the next's where each has its own. Bytes from where a stack begins to its sums, and
elements from one of their tiles to the next, and from one point to the next. Channels of a group.
How many panels there are and their table: the address of the product; elements from where the data,
the filters and the sums of a point begin; elements of a row of the panel's filters."""

COLUMNS = 5
"""Words of an entry of the table."""


class Panel(NamedTuple):
    """Some filters of a group at a point, in the kernel.

    Attributes:
        multiply: Address of the product.
        data: Where the data that they belong to begin.
        filters: Where they begin.
        sums: Where their sums begin.
        row: Bytes from one channel's to the next's.
    """

    multiply: Value
    data: Value
    filters: Value
    sums: Value
    row: Value


@contextmanager
def panels(k: Kernel, f: SimpleNamespace, block: Block, points: int) -> Iterator[Panel]:
    """Write what is done for each panel at each of this thread's points."""
    filters = k.at(f.filters, k.times(block.lane, f.filter_lane))
    begin, end = block.part(points)
    with k.loop(end, begin) as point, k.loop(f.panels) as panel:
        entry = k.add(f.panel, k.times(panel.i, COLUMNS * WIDE))
        words = [k.load_word(k.add(entry, WIDE * word)) for word in range(COLUMNS)]
        data, weights, sums = (
            k.at(k.at(base, k.times(point.i, step)), word)
            for base, step, word in (
                (block.stack, f.data_point, words[1]),
                (filters, f.filter_point, words[2]),
                (k.add(block.stack, f.sums), f.sum_point, words[3]),
            )
        )
        yield Panel(words[0], data, weights, sums, k.bytes(words[4]))


def product_values(tiling: Tiling, kernels: dict[int, int]) -> tuple[dict[str, int], np.ndarray]:
    """Return the values of those fields that follow from the sizes, and the table.

    The table is to be kept alive.

    Args:
        tiling: The convolution.
        kernels: Addresses of the products by the vectors of a panel.
    """
    c, m = tiling.channels // tiling.groups, tiling.filters // tiling.groups
    width = tiling.width
    table = np.array(
        [
            (kernels[n], g * c, g * tiling.group + at * c, g * m + at, n * width)
            for g in range(tiling.groups)
            for n, at in tiling.panels
        ],
        np.int64,
    )
    return {
        "data_row": tiling.tile, "data_point": tiling.data, "filter_point": tiling.weights,
        "sum_row": tiling.sum, "sum_point": tiling.sums, "channels": c,
        "panels": len(table), "panel": table.ctypes.data,
    }, table  # fmt: skip
