"""The GPU's kernels, run on the host, compute what the array API code computes."""

import numpy as np
import pytest
from cuda_host import HostEngine

from demitasse.backends import random
from demitasse.backends.cupy.engine import Grid

GRIDS = [Grid(1, 1), Grid(3, 4)]


@pytest.fixture(params=GRIDS, ids=["1 thread", "3 blocks of 4"])
def engine(request) -> HostEngine:
    return HostEngine(request.param)


@pytest.mark.parametrize(
    ("seed", "stream", "passes", "count", "first"),
    [
        (0, 0, 0, 8, 0),
        (1, 2, 3, 1, 0),
        (2**63 + 12345, 0xDEADBEEF, 2**33 + 7, 101, 3),
        (7, 8, 9, 2, 5),
        (7, 8, 9, 16, 4 * 2**32 - 6),
        (7, 8, 9, 0, 5),
    ],
)
def test_random_words_are_the_hosts_words(engine, seed, stream, passes, count, first):
    words = engine.random_bits(seed, stream, passes, count, first)

    assert words.dtype == np.uint32
    np.testing.assert_array_equal(words, random.bits(seed, stream, passes, count, first))
