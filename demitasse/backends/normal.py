"""The standard normal distribution in array functions; the array API standard has no ``erf``.

The tail is 1 - Phi(a) = exp(-a^2 / 2) p(t) / (a + 4) for a >= 0, with t = (a - 4) / (a + 4) from -1
to 1. One polynomial approximates the smooth function p. Errors are relative, in
the tail too: below 1e-15 in float64 and 5e-7 in float32.

Temporaries are changed in place: new arrays would cost more than the arithmetic.
"""

import math
from functools import cache
from typing import Any

from demitasse.backends.arrays import Array

SERIES = (
    0.9704512045660766, -0.7517088168395706, 0.22219355567525104,
    -0.048517753260446085, 0.006925920496242481, -0.00032059847439814995,
    -0.00010054739163210679, 1.8903369019706965e-05, 1.010356885474631e-06,
    -6.145334749397824e-07, -3.3810201200691756e-09, 2.0686508061742833e-08,
    -1.1282603632469507e-10, -7.774015228388695e-10, -9.941424191404708e-12,
    3.174482949858303e-11, 1.842480684470494e-12, -1.3128616466710965e-12,
    -1.7415362652654813e-13, 4.9072740317044244e-14, 1.2931384326165576e-14,
    -1.2180663521726341e-15, -8.052147372620933e-16, -2.8604941442616213e-17,
)  # fmt: skip
"""p as a series of Chebyshev polynomials: its integrals with them, computed with 50 digits."""

LARGEST = 40.0  # beyond it the tail is 0 in float64
STEPS_PER_ONE = 16.0


def gelu(xp: Any, x: Array) -> Array:
    """Return x Phi(x) of every element."""
    a = xp.minimum(xp.abs(x), LARGEST)
    below = _tail(xp, a, _bell(xp, a))
    below *= a
    y = xp.maximum(x, 0.0)
    y -= below
    return y


def gelu_slope(xp: Any, x: Array) -> Array:
    """Return the derivative of ``gelu``, Phi(x) + x phi(x), of every element."""
    a = xp.minimum(xp.abs(x), LARGEST)
    bell = _bell(xp, a)
    slope = _tail(xp, a, bell)
    bell *= a
    bell *= 1 / math.sqrt(2 * math.pi)
    slope -= bell
    # that was for -a; for a it is 1 less that
    other = xp.astype(x > 0.0, a.dtype)
    other *= 1.0 - 2.0 * slope
    slope += other
    return slope


def _bell(xp: Any, a: Array) -> Array:
    """Return exp(-a^2 / 2), to the last digits also where rounding a^2 would spoil them."""
    near = xp.round(a * STEPS_PER_ONE)
    near /= STEPS_PER_ONE  # few digits, so its square is exact
    rest = a - near
    rest *= a + near  # a^2 = near^2 + rest
    near *= near
    near *= -0.5
    rest *= -0.5
    bell = xp.exp(near)
    bell *= xp.exp(rest)
    return bell


def _tail(xp: Any, a: Array, bell: Array) -> Array:
    """Return 1 - Phi(a) for a >= 0."""
    inverse = 1.0 / (a + 4.0)
    t = -8.0 * inverse
    t += 1.0
    highest, *rest = tail_powers(float(xp.finfo(a.dtype).eps))
    tail = highest * t
    for coefficient in rest[:-1]:
        tail += coefficient
        tail *= t
    tail += rest[-1]
    tail *= inverse
    tail *= bell
    return tail


@cache
def tail_powers(eps: float) -> tuple[float, ...]:
    """Return the coefficients of p that matter at a precision, highest power first."""
    from numpy.polynomial import chebyshev  # half a MiB, for GELU alone

    series = [c for c in SERIES if abs(c) > eps / 16]
    return tuple(float(c) for c in reversed(chebyshev.cheb2poly(series)))
