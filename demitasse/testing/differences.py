"""How far two arrays of one computation are apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["KINDS", "Difference", "Gap", "distance", "gap"]

KINDS = ("data", "gradient", "parameter")

FLOOR = 1e-6


@dataclass(frozen=True)
class Gap:
    """The largest difference of two arrays.

    Attributes:
        absolute: Largest absolute difference; inf where one side is not finite, or the shapes
            differ.
        relative: The same, over the largest absolute value of the expected array.
        index: Where it is; empty where the shapes differ.
        got: The value there.
        expected: The value there that was expected.
        ulps: How many numbers of the arrays' type lie between the two, NaN where one is not finite.
        first: Where the first value is that differs; empty where none does.
    """

    absolute: float
    relative: float
    index: tuple[int, ...] = ()
    got: float = float("nan")
    expected: float = float("nan")
    ulps: float = float("nan")
    first: tuple[int, ...] = ()


@dataclass(frozen=True)
class Difference:
    """How far one array of one layer is from the first device's.

    Attributes:
        layer: Name of the layer.
        type: Its type.
        what: E.g. "top 'ip1'", "gradient of bottom 'pool2'", "gradient of parameter 0".
        device: The device compared.
        gap: The largest difference.
        inputs: The largest relative difference of what the layer has read; None where not known.
    """

    layer: str
    type: str
    what: str
    device: str
    gap: Gap
    inputs: float | None = None

    @property
    def absolute(self) -> float:
        """Largest absolute difference; inf where one side is not finite."""
        return self.gap.absolute

    @property
    def relative(self) -> float:
        """The same, over the largest absolute value of the first device's array."""
        return self.gap.relative

    @property
    def kind(self) -> str:
        """One of ``KINDS``: what it is about."""
        return next((kind for kind in KINDS[1:] if self.what.startswith(kind)), KINDS[0])

    def __str__(self) -> str:
        return (
            f"layer {self.layer!r} ({self.type}), {self.what}: "
            f"{self.relative:.2e} relative, {self.absolute:.2e} absolute on {self.device}"
        )


def gap(actual: np.ndarray, expected: np.ndarray, floor: float = FLOOR) -> Gap:
    """Return the largest difference of two arrays, and where it is.

    Values that are NaN, or the same infinity, on both sides do not differ.

    Args:
        actual: One array.
        expected: The array it should be.
        floor: The least that counts as the largest expected value: arrays of smaller values are
            rounding errors.
    """
    if actual.shape != expected.shape:
        return Gap(float("inf"), float("inf"))
    if not expected.size:
        return Gap(0.0, 0.0)
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    apart = np.subtract(a, b, where=~same, out=np.zeros_like(a))
    apart = np.where(np.isfinite(apart), np.abs(apart), np.inf)
    index = _place(int(np.argmax(apart)), apart.shape)
    absolute = float(apart[index])
    scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
    return Gap(
        absolute,
        absolute / max(scale, floor, FLOOR),
        index,
        float(a[index]),
        float(b[index]),
        _ulps(actual[index], expected[index]),
        _place(int(np.argmax(apart > 0)), apart.shape) if absolute else (),
    )


def _place(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))


def distance(actual: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """Return the largest difference, and that over the largest expected value.

    Both are infinite where the shapes differ or one side alone is not finite.
    """
    found = gap(actual, expected)
    return found.absolute, found.relative


def _ulps(got: np.floating, expected: np.floating) -> float:
    """Return how many steps of the larger one's last place two numbers are apart."""
    largest = np.maximum(np.abs(got), np.abs(expected))
    if not np.isfinite(largest) or not np.issubdtype(largest.dtype, np.floating):
        return float("nan")
    return float(abs(float(got) - float(expected)) / float(np.spacing(largest)))
