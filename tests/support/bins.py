"""Bins of regions, for tests of what pools them."""

import numpy as np

from demitasse.backends.regions import Bins


def some_bins(shape, regions, pooled, seed=1):
    """Bins of any size, perhaps empty, anywhere in images of a shape."""
    rng = np.random.default_rng(seed)
    spans = [
        np.sort(rng.integers(0, size + 1, (regions, count, 2)), axis=2)
        for size, count in zip(shape[2:], pooled, strict=True)
    ]
    return Bins(rng.integers(0, shape[0], regions), *spans)
