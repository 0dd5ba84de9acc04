"""Register tiles of a row: the tiles at the edges of an image have code of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Struct, Values
from demitasse.backends.kernels.language.values import INT, Word

Inside = tuple[range, ...]
"""The columns of a tile that are inside an image, for each image that the tile reads."""


def inside(first: int, count: int, columns: int) -> range:
    """Return which of ``count`` columns, from ``first`` on, are inside an image."""
    return range(max(0, -first), min(count, columns - first))


@dataclass(frozen=True)
class Tiles:
    """The tiles of a row: the first column of each, and the columns inside."""

    tiles: tuple[tuple[int, Inside], ...]

    @cached_property
    def cases(self) -> list[Inside]:
        """Different ranges inside; the code has a branch for each."""
        return list(dict.fromkeys(columns for _, columns in self.tiles))

    def __str__(self) -> str:
        cases = ([f"{one.start}to{one.stop}" for one in case] for case in self.cases)
        return "_".join("and".join(case) for case in cases)


class TileFields(Struct):
    """The tiles of a row."""

    table: Address
    """First column of each tile, and the number of its case."""
    count: Word

    @classmethod
    def of(cls, tiles: Tiles) -> Values:
        table = [(first, tiles.cases.index(columns)) for first, columns in tiles.tiles]
        return cls.values(table=np.array(table, np.int64), count=len(table))


def for_each_tile(
    k: Kernel, f: TileFields, tiles: Tiles, body: Callable[[Word, Inside], None]
) -> None:
    """Write a loop over the tiles of a row; ``body`` takes first column and columns inside."""
    with k.loop(f.count) as tile:
        first, number = k.load_words(f.table + tile.i * (2 * INT), 2)
        with k.cases(number) as case:
            for i, columns in enumerate(tiles.cases):
                case(i)
                body(first, columns)
