"""Exponentials and a logarithm in a kernel, without a function of another library.

e^x is 2^n times a polynomial of what is left of x beside n * log(2), which is taken away in two
parts so that large x lose nothing. log(1 + u) is 2 * artanh(u / (2 + u)), a short series.
"""

from __future__ import annotations

from math import log

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import (
    Vector,
    choose,
    fma,
    lowered,
    raised,
    rounded,
    two_to,
)
from demitasse.backends.kernels.squash import POWERS, polynomial

__all__ = ["exp", "exp_less_one", "log_one_more"]

LEAST, MOST = -104.0, 89.0
"""Below and above, e^x is 0 and infinite in float32."""

COARSE = 355 / 512
"""log(2) to nine bits, whose products with whole numbers up to 1 << 15 are exact."""

ODD = tuple(1 / n for n in (1, 3, 5, 7, 9, 11, 13, 15))
"""Coefficients of artanh."""


def exp(k: Kernel, x: Vector) -> Vector:
    """Return e^x of the elements, to two units of the last place; NaN stays."""
    whole, rest = _parts(k, x)
    half = rounded(whole * k.constant(0.5))  # 2^n itself may be too large or too small for a float
    return polynomial(k, rest, POWERS) * two_to(half) * two_to(whole - half)


def exp_less_one(k: Kernel, x: Vector) -> Vector:
    """Return e^x - 1 of elements that are not above 0, right for small ones too; NaN stays."""
    whole, rest = _parts(k, raised(x, k.constant(-40.0)))
    power = two_to(whole)
    return fma(power, rest * polynomial(k, rest, POWERS[1:]), power - k.constant(1.0))


def log_one_more(k: Kernel, u: Vector) -> Vector:
    """Return log(1 + u) of elements from 0 to 1; NaN stays."""
    ratio = u / (u + k.constant(2.0))
    return (ratio + ratio) * polynomial(k, ratio * ratio, ODD)


def _parts(k: Kernel, x: Vector) -> tuple[Vector, Vector]:
    """Return whole n and r, from -1/2 to 1/2, with e^x = 2^(n + r); of NaN r is NaN."""
    least = k.constant(LEAST)
    x = lowered(raised(x, least), k.constant(MOST))
    whole = rounded(choose(x > least, x, least) * k.constant(1 / log(2)))
    rest = fma(whole, k.constant(COARSE - log(2)), fma(whole, k.constant(-COARSE), x))
    return whole, rest * k.constant(1 / log(2))
