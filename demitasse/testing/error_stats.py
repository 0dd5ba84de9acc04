"""Error statistics of two arrays, and tolerances by element type and layer type."""

from dataclasses import dataclass

import numpy as np

from demitasse.core.deprecated import deprecated_attribute

KINDS = ("data", "gradient", "parameter")

FLOOR = 1e-6
"""Smallest scale: an array whose values are all smaller contains rounding errors alone."""

RTOL = {"bfloat16": 8e-2, "half": 1e-2, "float16": 1e-2, "float32": 1e-4, "float64": 1e-10}
"""Element type, or storage in 16 bits -> tolerance, relative to the largest value of an array. It
allows for sums in another order in a net of some dozens of layers."""

TYPES = {
    "BatchNorm": 10.0,  # differences of large numbers, divided by a small one
    "LRN": 3.0,
    "MVN": 10.0,
    "Normalize": 3.0,
}
"""Type of a layer that loses digits -> factor of the tolerance."""


@dataclass(frozen=True)
class ErrorStats:
    """Largest error of an array.

    Attributes:
        absolute: Largest absolute error; inf if one side alone is not finite, or shapes differ.
        relative: The absolute error over the largest absolute value of the expected array.
        index: Index of the largest error; empty if shapes differ.
        got: Value at ``index``.
        expected: Expected value at ``index``.
        ulps: Error at ``index`` in units in the last place; NaN if a value is not finite.
        first: Index of the first error; empty if there is none.
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
    """Error of one array of one layer, relative to the reference device.

    Attributes:
        layer: Name of the layer.
        type: Type of the layer.
        what: E.g. "top 'ip1'", "gradient of bottom 'pool2'", "gradient of parameter 0".
        device: The compared device.
        stats: Error statistics.
        inputs: Largest relative error of the layer's inputs; None if unknown.
    """

    layer: str
    type: str
    what: str
    device: str
    stats: ErrorStats
    inputs: float | None = None

    gap = deprecated_attribute("Difference", "gap", "stats")

    @property
    def absolute(self) -> float:
        """Largest absolute error; inf if one side alone is not finite."""
        return self.stats.absolute

    @property
    def relative(self) -> float:
        """The absolute error over the largest absolute value of the expected array."""
        return self.stats.relative

    @property
    def kind(self) -> str:
        """Kind of the array, one of ``KINDS``."""
        return next((kind for kind in KINDS[1:] if self.what.startswith(kind)), KINDS[0])

    def exceeds(self, dtype: str, rtol: float | None = None) -> bool:
        """Return True if the relative error is above the ``tolerance`` of an element type."""
        return not self.relative <= tolerance(dtype, self.type, rtol)

    def __str__(self) -> str:
        return (
            f"layer {self.layer!r} ({self.type}), {self.what}: "
            f"{self.relative:.2e} relative, {self.absolute:.2e} absolute on {self.device}"
        )


def error_stats(actual: np.ndarray, expected: np.ndarray, floor: float = FLOOR) -> ErrorStats:
    """Return the largest error of an array, and its index.

    Two NaNs are equal, and so are two equal infinities. ``floor`` is the smallest scale of the
    relative error.
    """
    if actual.shape != expected.shape:
        return ErrorStats(float("inf"), float("inf"))
    if not expected.size:
        return ErrorStats(0.0, 0.0)
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    error = np.subtract(a, b, where=~same, out=np.zeros_like(a))
    error = np.where(np.isfinite(error), np.abs(error), np.inf)
    index = tuple(map(int, np.unravel_index(int(np.argmax(error)), error.shape)))
    first = tuple(map(int, np.unravel_index(int(np.argmax(error > 0)), error.shape)))
    absolute = float(error[index])
    scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
    return ErrorStats(
        absolute,
        absolute / max(scale, floor, FLOOR),
        index,
        float(a[index]),
        float(b[index]),
        _ulps(actual[index], expected[index]),
        first if absolute else (),
    )


def _ulps(got: np.floating, expected: np.floating) -> float:
    """Return the distance in units in the last place of the larger number."""
    largest = np.maximum(np.abs(got), np.abs(expected))
    if not np.isfinite(largest) or not np.issubdtype(largest.dtype, np.floating):
        return float("nan")
    spacing = 2 * float(np.spacing(largest / 2))  # that of the largest number overflows
    return abs(float(got) - float(expected)) / spacing


def tolerance(dtype: str, type_: str = "", rtol: float | None = None) -> float:
    """Return the largest relative error that counts as agreement, of an element and layer type.

    ``rtol`` stands in place of ``RTOL[dtype]``, before the factor of the layer type.
    """
    return (RTOL[dtype] if rtol is None else rtol) * TYPES.get(type_, 1.0)
