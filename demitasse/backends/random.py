"""Counter-based random numbers: Philox4x32-10.

There is no state to carry: word ``i`` of a pass is a function of (seed, stream, pass, i) alone.
That makes the same numbers on every device, whatever the number of threads, and lets a resumed run
continue exactly.

Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import zlib

import numpy as np

__all__ = ["ROUNDS", "bits", "stream_of", "uniform"]

ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def stream_of(name: str) -> int:
    """Return the stream number of a name; the same in every process and on every machine."""
    return zlib.crc32(name.encode())


def block(counter: tuple[np.ndarray, ...], key: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Encrypt counters: four arrays of 32-bit words in, four out (held as uint64)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (b >> _SHIFT) ^ c1 ^ np.uint64(k0)
        c2 = (a >> _SHIFT) ^ c3 ^ np.uint64(k1)
        c1, c3 = b & _LOW, a & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def bits(seed: int, stream: int, passes: int, count: int, first: int = 0) -> np.ndarray:
    """Return words ``first`` to ``first + count`` of a pass.

    The counter is (word / 4, stream, pass low, pass high) and the key is the seed.

    Shapes: (count,), uint32.
    """
    begin, end = first // 4, -(-(first + count) // 4)
    index = np.arange(begin, end, dtype=np.uint64)
    high = index >> _SHIFT
    counter = (
        index & _LOW,
        np.full_like(index, stream & 0xFFFFFFFF) ^ high,
        np.full_like(index, passes & 0xFFFFFFFF),
        np.full_like(index, (passes >> 32) & 0xFFFFFFFF),
    )
    words = np.stack(block(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)), axis=1)
    flat: np.ndarray = words.astype(np.uint32).reshape(-1)
    return flat[first - 4 * begin : first - 4 * begin + count]


def uniform(seed: int, stream: int, passes: int, count: int) -> np.ndarray:
    """Return ``count`` doubles spread evenly over [0, 1), made of 53 random bits each."""
    words = bits(seed, stream, passes, 2 * count).astype(np.uint64)
    mantissa = (words[0::2] << np.uint64(21)) | (words[1::2] >> np.uint64(11))
    value: np.ndarray = mantissa.astype(np.float64) * 2.0**-53
    return value
