"""Exponential, sigmoid and tanh of vectors.

e^x is 2^n times a polynomial of what is left of x beside n * log(2), which is taken away in two
parts so that large x lose nothing. log(1 + u) is 2 * artanh(u / (2 + u)), a short series.
"""

from collections.abc import Sequence
from math import log

from demitasse.backends.kernels.language.kernel import Kernel
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


def exp(k: Kernel, x: Vector) -> Vector:
    """Return e^x of the elements, to two units of the last place; NaN stays."""
    whole, rest = _parts(k, x)
    half = rounded(whole * k.constant(0.5))  # 2^n itself may be too large or too small for a float
    return polynomial(k, rest, POWERS) * exp2_int(half) * exp2_int(whole - half)


def exp_less_one(k: Kernel, x: Vector) -> Vector:
    """Return e^x - 1 of elements that are not above 0, right for small ones too; NaN stays."""
    whole, rest = _parts(k, clamp_min(x, k.constant(-40.0)))
    power = exp2_int(whole)
    return fma(power, rest * polynomial(k, rest, POWERS[1:]), power - k.constant(1.0))


def log_one_more(k: Kernel, u: Vector) -> Vector:
    """Return log(1 + u) of elements from 0 to 1; NaN stays."""
    ratio = u / (u + k.constant(2.0))
    return (ratio + ratio) * polynomial(k, ratio * ratio, ODD)


def _parts(k: Kernel, x: Vector, least: float = LEAST) -> tuple[Vector, Vector]:
    """Return whole n and r, from -1/2 to 1/2, with e^x = 2^(n + r); of NaN r is NaN.

    Smaller exponents than ``least`` count as ``least``.
    """
    floor = k.constant(least)
    x = clamp_max(clamp_min(x, floor), k.constant(MOST))
    whole = rounded(choose(x > floor, x, floor) * k.constant(1 / log(2)))
    rest = fma(whole, k.constant(COARSE - log(2)), fma(whole, k.constant(-COARSE), x))
    return whole, rest * k.constant(1 / log(2))


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
    one, end, size, square = k.constant(1.0), k.constant(END), clamp_min(x, -x), x * x
    small = fma(square * polynomial(k, square, CUBES), x, x)
    exponent = choose(end > size, size, end) * k.constant(-2 / log(2))  # of NaN the end's
    whole = rounded(exponent)
    e = polynomial(k, exponent - whole, POWERS) * exp2_int(whole)
    large = one - (e + e) / (one + e)
    signed = choose(k.constant(0.0) > x, -large, large)
    return choose(size > k.constant(SMALL), signed, small)


def sigmoid(k: Kernel, x: Vector) -> Vector:
    """Return 1 / (1 + exp(-x)) of the elements, to three units of the last place; NaN stays."""
    whole, rest = _parts(k, -x, SMALLEST_POWER)  # one factor 2^n is enough: it may be infinite
    one = k.constant(1.0)
    return one / fma(polynomial(k, rest, POWERS), exp2_int(whole), one)


def polynomial(k: Kernel, x: Vector, coefficients: Sequence[float]) -> Vector:
    """Return a sum of powers of the elements, whose coefficients begin with the constant."""
    *lower, highest = coefficients
    value = k.constant(highest)
    for coefficient in reversed(lower):
        value = fma(value, x, k.constant(coefficient))
    return value
