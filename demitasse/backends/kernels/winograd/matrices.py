"""The matrices of Winograd's minimal filtering, from the points they are made of.

A row of m outputs of a filter of r taps is the middle part of a product of polynomials. It is found
from the product's values at m + r - 1 points, one of them infinity, so that many multiplications do
where the definition needs m * r. In two directions one is nested in the other.

Source: S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast
Algorithms for Convolutional Neural Networks, 2016.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

FIVE = (0.0, -1.0, 0.5, 1.0)
SIX = (0.0, -1.0, 2.0, -0.5, 1.0)
SEVEN = (0.0, -1.0, 2.0, -2.0, 0.5, 1.0)
EIGHT = (0.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1.0)
TEN = (0.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1.25, -1.25, 1.0)
"""Five to eight and ten points, but for infinity.

Among points that are exact in float32, these round best: errors are two to five times the direct
convolution's. The value 1 comes last: an offset of all outputs changes only the product there.
"""

Points = tuple[float, ...]

FINITE: dict[int, tuple[Points, ...]] = {
    1: ((),), 2: (FIVE, SIX), 3: (SIX,), 4: (SEVEN,), 5: (EIGHT,), 7: (EIGHT,),
}  # fmt: skip
"""The finite points for filters of so many rows or columns. With infinity they give 4 or 5 outputs
of 2 taps, 4 of 3, 4 and 5, and 2 of 7; one tap needs no transform."""

ALONE = {**FINITE, 7: (TEN,)}
"""The same for filters of one row or column: in one direction more points can be taken, for errors
are multiplied with those of the other. They give 4 outputs of 7 taps."""

PART_TAPS, MOST_PARTS = (3, 4, 5), 3
"""Rows or columns of the parts of larger windows, and most parts of a window."""

FILTER_TILES = 0.75
"""Rows of tiles whose products take as long as the transform or the reading of filters."""


@dataclass(frozen=True, eq=False)
class Matrices:
    """y = output @ ((filter @ g) * (input @ d)), for a filter g and a tile d of a row.

    Attributes:
        outputs: Outputs of a tile, m.
        taps: Length of the filter, r.
        window: Rows or columns of a window. It has a filter for each phase of a stride, or for each
            of the parts of a large window, which lie side by side.
        step: Its rows or columns from one of a filter to the next: the stride.
        input: (m + r - 1, m + r - 1).
        filter: (m + r - 1, r).
        output: (m, m + r - 1).
    """

    outputs: int
    taps: int
    input: np.ndarray
    filter: np.ndarray
    output: np.ndarray
    window: int
    step: int

    @property
    def side(self) -> int:
        """Transform positions of a row, m + r - 1."""
        return len(self.input)

    @property
    def filters(self) -> int:
        """Filters of a window."""
        return self.step if self.step > 1 else -(-self.window // self.taps)

    @property
    def firsts(self) -> range:
        """First row or column of each filter."""
        apart = 1 if self.step > 1 else self.taps
        return range(0, self.filters * apart, apart)

    def firsts_seen(self, *, flipped: bool) -> range:
        """Return the first row or column that each filter sees, ``flipped`` windows too."""
        if not flipped or self.step > 1:
            return self.firsts
        end = self.window - self.taps
        return range(end, end - self.taps * self.filters, -self.taps)

    @property
    def last(self) -> int:
        """Filters that have the last tap; that of the others is zero."""
        return self.window - self.filters * (self.taps - 1)

    def __str__(self) -> str:
        """Return the outputs and the window, and the stride or the parts if there are some."""
        kind = f"by{self.step}" if self.step > 1 else f"in{self.filters}"
        return f"{self.outputs}of{self.window}{kind * (self.filters > 1)}"


class Filtering(NamedTuple):
    """The matrices of a filter's columns, which go down an image, and of its rows."""

    down: Matrices
    across: Matrices

    @property
    def taps(self) -> int:
        return self.down.taps * self.across.taps

    @property
    def window(self) -> tuple[int, int]:
        """Rows and columns of a window, all phases of which have a filter."""
        return self.down.window, self.across.window

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of a tile's outputs, by which tiles lie apart."""
        return self.down.outputs, self.across.outputs

    @property
    def positions(self) -> int:
        """Transform positions: products per output tile."""
        return self.down.side * self.across.side

    @property
    def stride(self) -> tuple[int, int]:
        """Rows and columns from one window to the next."""
        return self.down.step, self.across.step

    @property
    def phases(self) -> int:
        """Phases of the strides."""
        return self.down.step * self.across.step

    @property
    def filters(self) -> int:
        """Filters of a window: of its phases, or of its parts."""
        return self.down.filters * self.across.filters

    @property
    def parts(self) -> int:
        """Parts of a large window, which has no phases."""
        return self.filters // self.phases

    def __str__(self) -> str:
        return f"{self.down}x{self.across}"


def has_filtering(kernel: tuple[int, ...], stride: tuple[int, ...], *, whole: bool = False) -> bool:
    """Return whether windows of these rows and columns have matrices, perhaps ``whole`` ones."""
    taps = {-(-window // step) for window, step in zip(kernel, stride, strict=True)}
    return len(kernel) == 2 and taps != {1} and all(_known(kernel, stride, whole))


def filtering(
    kernel: tuple[int, ...], output: tuple[int, int], stride: tuple[int, ...] = (1, 1), *,
    whole: bool = False,
) -> Filtering:  # fmt: skip
    """Return the matrices of windows of these rows and columns, which have some.

    Where several are known, the fewest products for an output of so many rows and columns decide.
    A window that is to stay ``whole`` has no parts.
    """

    def cheapest(known: list[Matrices], size: int) -> Matrices:
        def cost(one: Matrices) -> float:
            return (-(-size // one.outputs) + FILTER_TILES) * one.side * one.filters

        return min(known, key=cost)

    down, across = map(cheapest, _known(kernel, stride, whole), output)
    return Filtering(down, across)


def _known(kernel: tuple[int, ...], stride: tuple[int, ...], whole: bool) -> list[list[Matrices]]:
    """Return the known matrices of a window's columns and of its rows.

    A part of a large window lacks a tap at most.
    """
    points, known = ALONE if 1 in kernel else FINITE, []
    for window, step in zip(kernel, stride, strict=True):
        found = [matrices(window, some, step) for some in points.get(-(-window // step), ())]
        divides = window > max(PART_TAPS) and {*stride} == {1} and not whole
        for taps in PART_TAPS if divides else ():
            parts = -(-window // taps)
            if parts <= MOST_PARTS and parts * taps <= window + 1:
                found += [matrices(window, some, taps=taps) for some in points[taps]]
        known.append(found)
    return known


@cache
def matrices(window: int, points: Points, step: int = 1, taps: int = 0) -> Matrices:
    """Return the matrices of the filters of a window, given the finite points, in float32.

    The filters of a large window have so many ``taps``.
    """
    taps = taps or -(-window // step)
    outputs = len(points) + 2 - taps
    # of infinity, whose value is the last coefficient
    data = [np.atleast_1d(np.poly(points))[::-1]]
    filters, columns = [np.eye(taps)[-1]], [np.eye(outputs)[-1]]
    for point in points:
        others = [other for other in points if other != point]
        data.append(np.append(np.poly(others)[::-1], 0.0))
        filters.append(point ** np.arange(taps) / np.prod([point - other for other in others]))
        columns.append(point ** np.arange(outputs))
    # both of like size, by powers of two, which cost no precision
    ratio = np.linalg.norm(data, axis=1) / np.linalg.norm(filters, axis=1)
    factor = 2.0 ** np.round(np.log2(ratio) / 2)[:, np.newaxis]
    return Matrices(
        outputs,
        taps,
        np.array(data / factor, np.float32),
        np.array(filters * factor, np.float32),
        np.array(columns, np.float32).T.copy(),
        window,
        step,
    )
