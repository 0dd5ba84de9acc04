"""Arrays as they travel in half precision: half the bytes, eleven significant bits.

Every array is scaled by a power of two of its own before it is rounded, so that its largest finite
value fills the range of half precision. None overflows; what is smaller than the largest by a
factor of 2^38 becomes 0. NaN and infinity arrive as such, and change nothing of the others.

numpy converts one value at a time. Here it is done by the bits, several at a time: a float32 that
is multiplied by 2^-112 has the exponent that half precision has for it, 13 bits further up.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["HEAD", "packed", "unpacked"]

HEAD = 2
"""Elements in front of the values: the power of two, and 1 where some are NaN or infinite, or 0."""

LARGEST = 14
"""The largest value is below 2 to this power and one more: half precision ends below 2^16."""

AT_ONCE = 1 << 15
"""Values that are converted at a time; what they need meanwhile fits into a core's cache."""

BIAS = 112
"""By how much the exponents of float32 are larger than those of half precision."""

FRACTION = np.uint32(13)
"""By how many bits the fractions of float32 are longer."""


def packed(values: np.ndarray) -> np.ndarray:
    """Return values of float32 or float64 as they travel. Shapes: (n,) -> (n + 2,), float16."""
    message = np.empty(values.size + HEAD, np.float16)
    given, largest, strays = values, _largest(values), None
    if not math.isfinite(largest):
        strays = ~np.isfinite(values)
        largest = _largest(values[~strays])
    most = np.finfo(values.dtype).max * (1 - 2.0**-11)
    if largest > most:  # would be rounded up to infinity
        values = np.clip(values, -most, most)
    power = LARGEST - math.frexp(largest)[1]
    message[:HEAD] = power, strays is not None  # a whole number of four digits at most is exact
    halves = message[HEAD:].view(np.uint16)
    for start in range(0, values.size, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        scaled = _scaled(values[part], power - BIAS).astype(np.float32, copy=False)
        bits = scaled.view(np.uint32)
        sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
        bits &= np.uint32(0x7FFFFFFF)
        bits += np.uint32(0xFFF) + ((bits >> FRACTION) & np.uint32(1))  # to nearest, ties to even
        bits >>= FRACTION
        np.bitwise_or(bits, sign, out=halves[part], casting="unsafe")
    if strays is not None:
        message[HEAD:][strays] = given[strays]
    return message


def unpacked(message: np.ndarray, values: np.ndarray) -> None:
    """Write what has travelled to an array. Shapes: (n + 2,) -> (n,)."""
    travelled = message[HEAD:]
    halves, power = travelled.view(np.uint16), BIAS - int(message[0])
    for start in range(0, values.size, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        bits = halves[part].astype(np.uint32)
        sign = (bits & np.uint32(0x8000)) << np.uint32(16)
        bits &= np.uint32(0x7FFF)
        bits <<= FRACTION
        bits |= sign
        values[part] = _scaled(bits.view(np.float32).astype(values.dtype, copy=False), power)
    if message[1]:
        strays = ~np.isfinite(travelled)
        values[strays] = travelled[strays]


def _largest(values: np.ndarray) -> float:
    """Return the largest magnitude, or NaN where there is one; 0 of no values. Shape: (n,)."""
    return float(max(values.max(), -values.min())) if values.size else 0.0


def _scaled(values: np.ndarray, power: int) -> np.ndarray:
    """Return values times a power of two, which may be beyond float32's own."""
    if -126 <= power <= 127:
        scaled: np.ndarray = values * values.dtype.type(2.0**power)
    else:
        scaled = np.ldexp(values, power)
    return scaled
