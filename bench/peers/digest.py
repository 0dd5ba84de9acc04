"""Gradients in a few numbers each, and how far results are apart."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["Apart", "apart", "gradients"]

RESULTS = 1e-3
"""Largest relative difference of results that are taken to be the same."""

GRADIENTS = 2e-2
"""The same for gradients: one value that rounding moves past the corner of a ReLU, or to another
maximum of a window, changes those of a small batch by half a percent."""

GRADIENT = "gradient "
ZERO = 1e-5
"""What is this small beside the largest gradient is rounding."""

CHUNK = 1 << 18


def gradients(pairs: Iterable[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return, by key, the norm of each gradient and its product with a fixed wave."""
    wave = np.cos(np.arange(CHUNK) * 0.7)
    found = {}
    for key, array in pairs:
        flat = array.reshape(-1)
        square = product = 0.0
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK].astype(np.float64)
            square += float(part @ part)
            product += float(part @ wave[: part.size])
        found[GRADIENT + key] = np.array([np.sqrt(square), product])
    return found


@dataclass(frozen=True)
class Apart:
    """How far results are from the right ones.

    Attributes:
        results: Probabilities, or the loss before and after a step: the norm of the difference,
            relative to theirs. A near tie in a window moves single pixels of an image far.
        gradients: The worst gradient, relative to its largest value; 0 where there are none.
        where: Which gradient.
    """

    results: float
    gradients: float
    where: str

    @property
    def agrees(self) -> bool:
        return self.results <= RESULTS and self.gradients <= GRADIENTS

    def __str__(self) -> str:
        worst = f", gradients {self.gradients:.1e} ({self.where})" if self.where else ""
        return f"{self.results:.1e}{worst}"


def apart(got: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> Apart:
    """Compare results.

    A gradient that should be zero (of what a batch normalisation takes away again) is compared
    with the largest gradient. Of a batch, the first images may be all that is right.
    """
    largest = {key: float(np.abs(right[key]).max()) for key in right}
    floor = ZERO * max((v for k, v in largest.items() if k.startswith(GRADIENT)), default=0.0)
    results, gradients, where = 0.0, 0.0, ""
    for key in right:
        have = np.asarray(got[key], np.float64)
        off = have[tuple(map(slice, right[key].shape))] - right[key]
        if not key.startswith(GRADIENT):
            share = float(np.linalg.norm(off) / np.linalg.norm(right[key]))
            results = max(results, math.inf if math.isnan(share) else share)
            continue
        share = float(np.abs(off).max() / max(largest[key], floor))
        share = math.inf if math.isnan(share) else share
        if not where or share > gradients:
            gradients, where = share, key.removeprefix(GRADIENT)
    return Apart(results, gradients, where)
