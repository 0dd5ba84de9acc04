"""Exponential, logarithm, sigmoid and tanh of vectors.

e^x is 2^n times a polynomial of what is left of x beside n * log(2), which is taken away in two
parts so that large x lose nothing. log(1 + u) is 2 * artanh(u / (2 + u)), a short series.
"""

from collections.abc import Sequence
from math import log

from demitasse.backends.kernels.language.values import (
    Vector,
    choose,
    clamp_max,
    clamp_min,
    exp2_int,
    fma,
    rounded,
)

LEAST, MOST = -104.0, 89.0
"""Below and above, e^x is 0 and infinite in float32."""

SMALLEST_POWER = -87.0
"""Powers e^x below this may have no normal float."""

COARSE = 355 / 512
"""log(2) to nine bits, whose products with whole numbers up to 1 << 15 are exact."""

ODD = tuple(1 / n for n in (1, 3, 5, 7, 9, 11, 13, 15))
"""Coefficients of artanh."""


def exp(x: Vector) -> Vector:
    """Return e^x of the elements, to two units of the last place; NaN stays."""
    whole, rest = _parts(x)
    half = rounded(whole * 0.5)  # 2^n itself may be too large or too small for a float
    return polynomial(rest, POWERS) * exp2_int(half) * exp2_int(whole - half)


def exp_less_one(x: Vector) -> Vector:
    """Return e^x - 1 of elements that are not above 0, right for small ones too; NaN stays."""
    whole, rest = _parts(clamp_min(x, -40.0))
    power = exp2_int(whole)
    return fma(power, rest * polynomial(rest, POWERS[1:]), power - 1.0)


def log_one_more(u: Vector) -> Vector:
    """Return log(1 + u) of elements from 0 to 1; NaN stays."""
    ratio = u / (u + 2.0)
    return (ratio + ratio) * polynomial(ratio * ratio, ODD)


def _parts(x: Vector, least: float = LEAST) -> tuple[Vector, Vector]:
    """Return whole n and r, from -1/2 to 1/2, with e^x = 2^(n + r); of NaN r is NaN.

    Smaller exponents than ``least`` count as ``least``.
    """
    x = clamp_max(clamp_min(x, least), MOST)
    whole = rounded(choose(x > least, x, least) * (1 / log(2)))
    rest = fma(whole, COARSE - log(2), fma(whole, -COARSE, x))
    return whole, rest * (1 / log(2))


SMALL = 0.625
"""Magnitude up to which tanh is x + x^3 P(x^2)."""

END = 10.0
"""Magnitude from which on tanh is 1 in float32."""

CUBES = -0.333332819, 0.133314422, -0.053739714, 0.0206390842, -0.00570498395
"""Coefficients of P, that of the lowest power first."""

POWERS = (
    1.0, 0.693147203, 0.240226479, 0.0555033247, 0.00961843736, 0.00133988746, 0.000153533614
)  # fmt: skip
"""Coefficients of 2^x from -1/2 to 1/2."""


def tanh(x: Vector) -> Vector:
    """Return tanh of the elements; NaN stays."""
    size, square = clamp_min(x, -x), x * x
    small = fma(square * polynomial(square, CUBES), x, x)
    exponent = choose(size < END, size, END) * (-2 / log(2))  # of NaN the end's
    whole = rounded(exponent)
    e = polynomial(exponent - whole, POWERS) * exp2_int(whole)
    large = 1.0 - (e + e) / (1.0 + e)
    return choose(size > SMALL, choose(x < 0.0, -large, large), small)


def sigmoid(x: Vector) -> Vector:
    """Return 1 / (1 + exp(-x)) of the elements, to three units of the last place; NaN stays."""
    whole, rest = _parts(-x, SMALLEST_POWER)  # one factor 2^n is enough: it may be infinite
    return 1.0 / fma(polynomial(rest, POWERS), exp2_int(whole), 1.0)


def hard_swish(x: Vector) -> Vector:
    """Return x min(max(x + 3, 0), 6) / 6 of the elements; NaN stays."""
    return x * clamp_max(clamp_min(x + 3.0, 0.0), 6.0) * (1 / 6)


def polynomial(x: Vector, coefficients: Sequence[float]) -> Vector:
    """Return a sum of powers of the elements, whose coefficients begin with the constant."""
    *lower, highest = coefficients
    value = x.constant(highest)
    for coefficient in reversed(lower):
        value = fma(value, x, coefficient)
    return value
