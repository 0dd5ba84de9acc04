"""How far devices may be apart: by what they compute in, and by the type of the layer."""

from __future__ import annotations

__all__ = ["RTOL", "TYPES", "tolerance"]

RTOL = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-10}
"""Largest difference for each type of numbers, over the largest value of an array: what sums in
another order make of a net of some dozens of layers."""

TYPES = {
    "BatchNorm": 10.0,  # differences of large numbers, divided by a small one
    "LRN": 3.0,
    "MVN": 10.0,
    "Normalize": 3.0,
}
"""Layer type -> how many times that: those that lose digits by what they compute."""


def tolerance(dtype: str, type_: str = "", rtol: float | None = None) -> float:
    """Return the largest relative difference that is no fault.

    Args:
        dtype: What a net computes in.
        type_: The layer's type; none given: a layer that loses no digits.
        rtol: What somebody allows in place of the table's; the layer's type counts on top of it.

    Raises:
        KeyError: There is nothing for this type of numbers.
    """
    return (RTOL[dtype] if rtol is None else rtol) * TYPES.get(type_, 1.0)
