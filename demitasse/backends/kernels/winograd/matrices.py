"""The matrices of Winograd's minimal filtering, from the points they are made of.

A row of m outputs of a filter of r taps is the middle part of a product of polynomials. It is found
from the product's values at m + r - 1 points, one of them infinity, so that many multiplications do
where the definition needs m * r.

Source: S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast
Algorithms for Convolutional Neural Networks, 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

__all__ = ["FINITE", "Matrices", "matrices"]

FINITE = {
    3: (0.0, -1.0, 2.0, -0.5, 1.0),
    5: (0.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1.0),
}
"""The finite points for filters of so many taps; with infinity they give 4 outputs.

Of those that float32 holds exactly, these round best: the error is 3 and 5 times that of the
definition. The value 1 comes last: an offset of all outputs is one of the product there alone.
"""


@dataclass(frozen=True)
class Matrices:
    """y = output @ ((filter @ g) * (input @ d)), for a filter g and a tile d of a row.

    Attributes:
        outputs: How many outputs one tile gives, m.
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
        """How many points a row has, m + r - 1."""
        return len(self.input)


@cache
def matrices(taps: int) -> Matrices:
    """Return the matrices of a filter of 3 or 5 taps over all points, in float32."""
    points = FINITE[taps]
    outputs = len(points) + 2 - taps
    rows = [_infinite(points, outputs, taps)]
    rows += [_finite(points, point, outputs, taps) for point in points]
    data, filters, columns = (np.stack(part) for part in zip(*rows, strict=True))
    # both of like size, by powers of two, which cost no precision
    ratio = np.linalg.norm(data, axis=1) / np.linalg.norm(filters, axis=1)
    factor = 2.0 ** np.round(np.log2(ratio) / 2)[:, np.newaxis]
    return Matrices(
        outputs,
        taps,
        (data / factor).astype(np.float32),
        (filters * factor).astype(np.float32),
        np.ascontiguousarray(columns.T, np.float32),
    )


Row = tuple[np.ndarray, np.ndarray, np.ndarray]


def _finite(points: tuple[float, ...], point: float, outputs: int, taps: int) -> Row:
    """Return a row of the input's and of the filter's matrix, and a column of the output's."""
    others = [other for other in points if other != point]
    data = np.append(np.poly(others)[::-1], 0.0)
    norm = np.prod([point - other for other in others])
    return data, point ** np.arange(taps) / norm, point ** np.arange(outputs)


def _infinite(points: tuple[float, ...], outputs: int, taps: int) -> Row:
    return np.poly(points)[::-1].copy(), np.eye(taps)[-1], np.eye(outputs)[-1]
