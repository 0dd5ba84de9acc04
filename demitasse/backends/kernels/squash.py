"""Hyperbolic tangent and sigmoid in a kernel, without a function of another library.

Small x give x + x^3 * P(x^2), others 1 - 2 * e / (1 + e) with e = exp(-2x), which is 2^n times a
polynomial of what is left of the exponent. The coefficients are those of the least relative error,
found by linear least squares whose weights follow the error. What is computed is off by two units
of the last place at most, and by little more than half of one where the result is nearly 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import Vector, choose, fma, raised, rounded, two_to

__all__ = ["POWERS", "polynomial", "sigmoid", "tanh"]

SMALL = 0.625
"""Up to here by the first formula."""

END = 10.0
"""From here on tanh is 1 in float32."""

CUBES = -0.333332819, 0.133314422, -0.053739714, 0.0206390842, -0.00570498395
"""Coefficients of P, that of the lowest power first."""

POWERS = (
    1.0, 0.693147203, 0.240226479, 0.0555033247, 0.00961843736, 0.00133988746, 0.000153533614
)  # fmt: skip
"""Those of 2^x from -1/2 to 1/2."""


def tanh(k: Kernel, x: Vector) -> Vector:
    """Return tanh of the elements; NaN stays."""
    one, end, size, square = k.constant(1.0), k.constant(END), raised(x, -x), x * x
    small = fma(square * polynomial(k, square, CUBES), x, x)
    exponent = choose(end > size, size, end) * k.constant(-2 / log(2))  # of NaN the end's
    whole = rounded(exponent)
    e = polynomial(k, exponent - whole, POWERS) * two_to(whole)
    large = one - (e + e) / (one + e)
    signed = choose(k.constant(0.0) > x, -large, large)
    return choose(size > k.constant(SMALL), signed, small)


def sigmoid(k: Kernel, x: Vector) -> Vector:
    """Return 1 / (1 + exp(-x)) of the elements, by way of tanh; NaN stays.

    So it is 0 and 1 where that of portable code is. It is off by 1e-7 at most, whatever its size.
    """
    half = k.constant(0.5)
    return fma(tanh(k, x * half), half, half)


def polynomial(k: Kernel, x: Vector, coefficients: Sequence[float]) -> Vector:
    """Return a sum of powers of the elements, whose coefficients begin with the constant."""
    *lower, highest = coefficients
    value = k.constant(highest)
    for coefficient in reversed(lower):
        value = fma(value, x, k.constant(coefficient))
    return value
