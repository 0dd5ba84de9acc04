"""Two sets of weights compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

Weights = dict[str, list[np.ndarray]]
"""For each layer its parameters, in Caffe's order."""

__all__ = ["ArrayDifference", "WeightsDifference", "weights_difference"]


@dataclass(frozen=True)
class ArrayDifference:
    """How far one parameter is from the other file's.

    Attributes:
        layer: Name of the layer.
        index: Which of its parameters.
        absolute: Largest absolute difference; inf where one is not finite and the other not it.
        relative: The same, over the largest absolute value of the two arrays.
        place: Index of the largest difference.
        first: The first file's value there.
        second: The second file's value there.
    """

    layer: str
    index: int
    absolute: float
    relative: float
    place: tuple[int, ...]
    first: float
    second: float


@dataclass
class WeightsDifference:
    """What differs between two files.

    Attributes:
        only_first: Layers that only the first file has.
        only_second: Layers that only the second file has.
        shapes: (layer, index, shape in the first, shape in the second) where they differ in more
            than leading axes of 1; None for a parameter that is not there.
        arrays: All pairs of equal shape, the largest relative difference first.
    """

    only_first: list[str] = field(default_factory=list)
    only_second: list[str] = field(default_factory=list)
    shapes: list[tuple[str, int, Any, Any]] = field(default_factory=list)
    arrays: list[ArrayDifference] = field(default_factory=list)

    def within(self, rtol: float) -> bool:
        """Whether both have the same parameters, and none is off by more than ``rtol``."""
        same = not (self.only_first or self.only_second or self.shapes)
        return same and all(array.relative <= rtol for array in self.arrays)


def weights_difference(first: Weights, second: Weights) -> WeightsDifference:
    """Compare weights layer by layer, by name."""
    result = WeightsDifference(
        only_first=[name for name in first if name not in second],
        only_second=[name for name in second if name not in first],
    )
    for layer in first:
        if layer not in second:
            continue
        for index, (a, b) in enumerate(zip_longest(first[layer], second[layer])):
            if a is None or b is None or _plain(a).shape != _plain(b).shape:
                shapes = [None if array is None else array.shape for array in (a, b)]
                result.shapes.append((layer, index, shapes[0], shapes[1]))
            elif a.size:
                short = a if a.ndim < b.ndim else b
                pair = a.reshape(short.shape), b.reshape(short.shape)
                result.arrays.append(_difference(layer, index, *pair))
    result.arrays.sort(key=lambda array: array.relative, reverse=True)
    return result


def _plain(array: np.ndarray) -> np.ndarray:
    """Return an array without leading axes of 1: files of old give every parameter four axes."""
    first = next((axis for axis, size in enumerate(array.shape) if size != 1), array.ndim)
    return array.reshape(array.shape[first:])


def _difference(layer: str, index: int, a: np.ndarray, b: np.ndarray) -> ArrayDifference:
    first, second = a.astype(np.float64), b.astype(np.float64)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    gap = np.where(same, 0.0, np.inf)
    finite = np.isfinite(first) & np.isfinite(second)
    np.subtract(first, second, out=gap, where=finite)
    np.abs(gap, out=gap)
    flat = int(np.argmax(gap))
    place = tuple(int(i) for i in np.unravel_index(flat, a.shape))
    absolute = float(gap[place])
    scale = max(_largest(first), _largest(second))
    relative = absolute / scale if scale else absolute
    return ArrayDifference(
        layer, index, absolute, relative, place, float(first[place]), float(second[place])
    )


def _largest(array: np.ndarray) -> float:
    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0))
