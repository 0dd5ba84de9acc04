"""How images are cut into tiles, and where the tiles' values lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from demitasse.backends.kernels.products.panels import panels
from demitasse.backends.kernels.winograd.matrices import Matrices

__all__ = ["Tiling", "odd_lines"]

LINE, WIDE = 16, 128
"""Elements of a cache line, and of a row from which on rows are kept from competing for them."""

STACK, COMMON = 1 << 20, 4 << 20
"""Bytes of transformed tiles per thread that are worked on at a time: in a thread's own lane they
stay in its cache; what threads share is for filters that no cache holds, and are read each time."""

FEWEST = 24
"""Tiles that are worked on at a time at least."""

FILTERS = 8 << 20
"""Bytes of transformed filters from which on threads divide them, and work on the same tiles."""


@dataclass(frozen=True)
class Tiling:
    """The tiles of a stack of images: pieces of the input that overlap, pieces of the output.

    A row of tiles of one image is a strip. Strips are what threads divide: each has a lane of them,
    and does with a few of them at a time all that is to be done. So no core reads what another one
    wrote, which takes several times as long where they do not share a cache. Where the filters are
    many, threads divide each transform, and then the points, and wait for each other between.

    Attributes:
        matrices: Of the filter.
        images: How many images there are.
        channels: Of the input.
        size: Rows and columns of the input.
        filters: Channels of the output.
        groups: Into how many parts channels and filters are divided.
        pad: Zeros above and left of the input.
        output: Rows and columns of the output.
        width: Channels of a vector.
        threads: How many there are.
    """

    matrices: Matrices
    images: int
    channels: int
    size: tuple[int, int]
    filters: int
    groups: int
    pad: tuple[int, int]
    output: tuple[int, int]
    width: int
    threads: int

    @cached_property
    def lanes(self) -> int:
        """Into how many lanes the strips are divided."""
        return min(self.threads, self.strips)

    @cached_property
    def points(self) -> int:
        """How many points the tiles are looked at: products for each piece of the output."""
        return len(self.matrices.input) ** 2

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tiles of one image."""
        step = self.matrices.outputs
        return -(-self.output[0] // step), -(-self.output[1] // step)

    @cached_property
    def strips(self) -> int:
        """Rows of tiles of all images."""
        return self.images * self.grid[0]

    @cached_property
    def backward(self) -> Tiling:
        """The convolution that is the gradient of the input."""
        rest = self.matrices.taps - 1
        pad = (rest - self.pad[0], rest - self.pad[1])
        return replace(
            self, channels=self.filters, filters=self.channels, size=self.output, pad=pad,
            output=self.size,
        )  # fmt: skip

    # -- filters -------------------------------------------------------------------------------

    @cached_property
    def panels(self) -> list[tuple[int, int]]:
        """Into what panels the filters of a group are divided: vectors, and the first filter.

        The filters of a panel lie side by side, channel after channel: products read them from
        beginning to end.
        """
        return panels(self.filters // self.groups, self.width)

    @cached_property
    def group(self) -> int:
        """Elements from one group's filters to the next's, at a point."""
        return self.channels // self.groups * self._vectors(self.filters // self.groups)

    @cached_property
    def weights(self) -> int:
        """Elements from one point's values of the filters to the next's."""
        return odd_lines(self.groups * self.group)

    @cached_property
    def shared(self) -> bool:
        """Whether all threads work on the same tiles."""
        return self.points * self.weights * 4 > FILTERS

    # -- tiles ---------------------------------------------------------------------------------

    @cached_property
    def tile(self) -> int:
        """Elements from one tile of the input to the next, at a point."""
        return _apart(self.channels)

    @cached_property
    def sum(self) -> int:
        """Elements from one tile of the output to the next, at a point; the last panel fits."""
        part = self.filters // self.groups
        return _apart(self._vectors(self.filters - part + self._vectors(part)))

    @cached_property
    def strip(self) -> int:
        """Bytes of a strip's values at all points, those of the input and of the output."""
        return self.points * (self.tile + self.sum) * 4 * self.grid[1]

    @cached_property
    def block(self) -> int:
        """Strips that are worked on at a time, in a lane or by all."""
        parts, space = (1, self.threads * COMMON) if self.shared else (self.lanes, STACK)
        most = max(space // self.strip, -(-FEWEST // self.grid[1]))
        lane = -(-self.strips // parts)
        return -(-lane // -(-lane // most))  # rounds of equal length

    @cached_property
    def data(self) -> int:
        """Elements from one point's values of the input to the next's."""
        return odd_lines(self.block * self.grid[1] * self.tile)

    @cached_property
    def sums(self) -> int:
        """Elements from one point's values of the output to the next's."""
        return odd_lines(self.block * self.grid[1] * self.sum)

    def _vectors(self, count: int) -> int:
        """Return ``count`` rounded up to whole vectors."""
        return -(-count // self.width) * self.width


def odd_lines(count: int) -> int:
    """Return at least ``count`` elements, an odd number of cache lines.

    Values of one tile at all points are written together. Lines whose distance is a power of two
    would compete for a few places in the cache.
    """
    return LINE * (-(-count // LINE) | 1)


def _apart(count: int) -> int:
    """Return how many elements rows of ``count`` are apart, which are read several at once."""
    return count + LINE if count >= WIDE and count % (4 * LINE) == 0 else count
