"""Who hosts what, and sums whose bits do not depend on it."""

import threading

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, ErrorCode
from demitasse.training.distributed import Shards
from demitasse.training.distributed.allreduce import deterministic_mean, fast_mean, tree_sum
from demitasse.training.distributed.threads import connected_threads

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 12])
def test_every_shard_has_one_process(count):
    for size in range(1, count + 1):
        hosted = [shard for rank in range(size) for shard in Shards(count, rank, size).of(rank)]

        assert sorted(hosted) == list(range(count))


def test_more_processes_than_shards_are_refused():
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="shards", got=2, expected=3):
        Shards(2, 0, 3)


def test_a_sum_is_added_from_the_far_half():
    parts = [np.array([text], object) for text in "abcde"]

    tree_sum(parts)

    assert parts[0][0] == "adcbe"


def mean_of(parts, size, mean, bucket=64):
    """Return what each of so many processes gets for the mean of all shards' values."""
    results = [None] * size

    def one(communicator):
        shards = Shards(len(parts), communicator.rank, size)
        own = [parts[shard].copy() for shard in shards.of(shards.rank)]
        options = {"bucket": bucket} if mean is deterministic_mean else {}
        mean(communicator, shards, own, **options)
        results[communicator.rank] = own[0]

    threads = [threading.Thread(target=one, args=(c,)) for c in connected_threads(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_exact_mean_is_the_same_bits_for_any_number_of_processes(count, dtype):
    parts = [RNG.normal(size=301).astype(dtype) for _ in range(count)]
    [alone] = mean_of(parts, 1, deterministic_mean)

    for size in range(2, count + 1):
        for found in mean_of(parts, size, deterministic_mean):
            np.testing.assert_array_equal(found, alone)

    np.testing.assert_allclose(alone, np.mean(parts, axis=0), rtol=1e-5, atol=1e-6)


def test_the_size_of_the_buckets_changes_nothing():
    parts = [RNG.normal(size=301).astype("float32") for _ in range(4)]

    found = {
        mean_of(parts, 2, deterministic_mean, bucket)[0].tobytes() for bucket in (4, 100, 10000)
    }

    assert len(found) == 1


def test_the_fast_mean_is_the_same_in_all_processes():
    parts = [RNG.normal(size=301).astype("float32") for _ in range(6)]

    found = mean_of(parts, 3, fast_mean)

    assert len({one.tobytes() for one in found}) == 1
    np.testing.assert_allclose(found[0], np.mean(parts, axis=0), rtol=1e-5, atol=1e-6)
