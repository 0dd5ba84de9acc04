"""CRC-32C, the checksum of LevelDB files, computed over many bytes in parallel.

A checksum without its initial value is linear over bits: crc(a + b) is crc(a), advanced by len(b)
zero bytes, XOR crc(b). The bytes are split into lanes of equal length, all lanes go through the
tables in parallel, and neighbours are combined until one checksum is left.

Source: RFC 3720, appendix B.4, for the polynomial; LevelDB, ``util/crc32c.h``, for the mask.
"""

from __future__ import annotations

from functools import cache

import numpy as np

__all__ = ["crc32c", "masked"]

POLYNOMIAL = 0x82F63B78  # bits in reverse
ALL = 0xFFFFFFFF
LANE = 64
"""Bytes per lane: long enough that combining is cheap, short enough for many lanes."""

MASK = 0xA282EAD8


def crc32c(content: bytes) -> int:
    """Return the checksum of ``content``."""
    if len(content) < 4:
        return _byte_by_byte(content)
    lanes = -(-len(content) // LANE)
    padded = np.zeros(lanes * LANE, np.uint8)  # zeros in front change nothing
    padded[len(padded) - len(content) :] = np.frombuffer(content, np.uint8)
    padded[len(padded) - len(content) :][:4] ^= 0xFF  # the initial value
    words = np.ascontiguousarray(padded.view("<u4").reshape(lanes, LANE // 4).T)
    state = np.zeros(lanes, np.uint32)
    for column in words:
        state = _moved(state ^ column, 2)
    power = LANE.bit_length() - 1
    while len(state) > 1:
        if len(state) % 2:
            state = np.concatenate([np.zeros(1, np.uint32), state])
        state = _moved(state[::2], power) ^ state[1::2]
        power += 1
    return int(state[0]) ^ ALL


def masked(checksum: int) -> int:
    """Return a checksum as LevelDB stores it; masking avoids checksums of checksums."""
    return ((checksum >> 15 | checksum << 17) + MASK) & ALL


def _moved(state: np.ndarray, power: int) -> np.ndarray:
    """Return checksums advanced by ``2 ** power`` zero bytes. Shapes: (n,), uint32."""
    low, high = _tables(power)
    return np.asarray(low.take(state & 0xFFFF) ^ high.take(state >> 16))


@cache
def _tables(power: int) -> np.ndarray:
    """Return the advanced value for each 16-bit half of a checksum. Shape: (2, 65536), uint32."""
    halves = np.arange(1 << 16, dtype=np.uint32) << np.array([[0], [16]], np.uint32)
    if power:
        return _moved(_moved(halves.ravel(), power - 1), power - 1).reshape(halves.shape)
    for _ in range(8):
        halves = np.where(halves & 1, halves >> 1 ^ np.uint32(POLYNOMIAL), halves >> 1)
    return halves


def _byte_by_byte(content: bytes) -> int:
    state = ALL
    for byte in content:
        state = int(_tables(0)[0][(state ^ byte) & 0xFF]) ^ state >> 8
    return state ^ ALL
