"""Counter-based random numbers: Philox4x64-10.

There is no state to carry: word ``i`` of a pass is a function of (seed, stream, pass, i) alone.
That makes the same numbers on every device, whatever the number of threads, and lets a resumed run
continue exactly. On the host, numpy computes them.

Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import zlib

import numpy as np

from demitasse.core.frozen_struct import FrozenStruct

WORDS_PER_BLOCK = 8  # of 32 bits: four of 64, the low half of each first
MASK = (1 << 64) - 1


class Draw(FrozenStruct):
    """Random words that a layer draws in a pass; ``world_size`` processes share them by sample."""

    seed: int
    stream: int
    passes: int
    world_size: int = 1


def stream_of(name: str) -> int:
    """Return the stream number of a name; the same in every process and on every machine."""
    return zlib.crc32(name.encode(errors="surrogateescape"))


def bits(seed: int, stream: int, passes: int, count: int, first: int = 0) -> np.ndarray:
    """Return words ``first`` to ``first + count`` of a pass.

    The counter is (word / 8, stream, pass, 0) and the key is (seed, 0).

    Shapes: (count,), uint32.
    """
    begin, end = first // WORDS_PER_BLOCK, -(-(first + count) // WORDS_PER_BLOCK)
    raw = _raw(seed, (begin, stream, passes, 0), 4 * (end - begin))
    words: np.ndarray = raw.astype("<u8", copy=False).view("<u4").astype(np.uint32, copy=False)
    skipped = first - WORDS_PER_BLOCK * begin
    return words[skipped : skipped + count]


def uniform(seed: int, stream: int, passes: int, count: int) -> np.ndarray:
    """Return ``count`` doubles spread evenly over [0, 1), made of 53 random bits each.

    The counter is (number / 4, stream, pass, 1): apart from the words of ``bits``.
    """
    raw = _raw(seed, (0, stream, passes, 1), -(-count // 4) * 4)[:count]
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _raw(seed: int, counter: tuple[int, int, int, int], count: int) -> np.ndarray:
    """Return 64-bit words from a counter on."""
    start = sum((word & MASK) << (64 * i) for i, word in enumerate(counter))
    # numpy counts up before it draws
    generator = np.random.Philox(counter=(start - 1) % (1 << 256), key=seed & MASK)
    raw: np.ndarray = generator.random_raw(count)
    return raw
