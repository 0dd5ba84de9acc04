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

SIX = (0.0, -1.0, 2.0, -0.5, 1.0)
EIGHT = (0.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1.0)
TEN = (0.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1.25, -1.25, 1.0)
"""Six, eight and ten points, but for infinity.

Among points that are exact in float32, these round best: errors are two to five times the direct
convolution's. The value 1 comes last: an offset of all outputs changes only the product there.
"""

FINITE: dict[int, tuple[float, ...]] = {1: (), 3: SIX, 5: EIGHT, 7: EIGHT}
"""The finite points for filters of so many rows or columns. With infinity they give 4 outputs of 3
and 5 taps, and 2 of 7; one tap needs no transform."""

ALONE = {**FINITE, 7: TEN}
"""The same for filters of one row or column: in one direction more points can be taken, for errors
are multiplied with those of the other. They give 4 outputs of 7 taps."""


@dataclass(frozen=True, eq=False)
class Matrices:
    """y = output @ ((filter @ g) * (input @ d)), for a filter g and a tile d of a row.

    Attributes:
        outputs: Outputs of a tile, m.
        taps: Length of the filter, r.
        input: (m + r - 1, m + r - 1).
        filter: (m + r - 1, r).
        output: (m, m + r - 1).
    """

    outputs: int
    taps: int
    input: np.ndarray
    filter: np.ndarray
    output: np.ndarray

    @property
    def side(self) -> int:
        """Transform positions of a row, m + r - 1."""
        return len(self.input)


class Filtering(NamedTuple):
    """The matrices of a filter's columns, which go down an image, and of its rows."""

    down: Matrices
    across: Matrices

    @property
    def taps(self) -> int:
        return self.down.taps * self.across.taps

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of a tile's outputs, by which tiles lie apart."""
        return self.down.outputs, self.across.outputs

    @property
    def positions(self) -> int:
        """Transform positions: products per output tile."""
        return self.down.side * self.across.side

    def __str__(self) -> str:
        """Return the rows and columns of a filter."""
        return f"{self.down.taps}x{self.across.taps}"


def has_filtering(kernel: tuple[int, ...]) -> bool:
    """Return whether filters of these rows and columns have matrices."""
    return len(kernel) == 2 and FINITE.keys() >= {*kernel}


@cache
def filtering(kernel: tuple[int, ...]) -> Filtering:
    """Return the matrices of filters of these rows and columns, which have some."""
    points = ALONE if 1 in kernel else FINITE
    down, across = (matrices(taps, points[taps]) for taps in kernel)
    return Filtering(down, across)


@cache
def matrices(taps: int, points: tuple[float, ...]) -> Matrices:
    """Return the matrices of a filter of ``taps`` taps, given the finite points, in float32."""
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
    )
