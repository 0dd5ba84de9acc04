"""Lower bounds for divisors and for the arguments of logarithms."""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.layers.base import Layer

__all__ = ["FLT_MIN", "LOG_THRESHOLD", "at_least_one"]

FLT_MIN = 1.1754943508222875e-38
"""The smallest normal number in single precision."""

LOG_THRESHOLD = 1e-20
"""The smallest probability whose logarithm older losses take, as Caffe calls it."""


def at_least_one(layer: Layer, value: Array) -> Array:
    """Return ``value``, and 1 where it is smaller, so that nothing is divided by 0.

    Shapes: value any -> the same.
    """
    return layer.xp.maximum(value, 1.0)
