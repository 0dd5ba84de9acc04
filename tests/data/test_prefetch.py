"""Prefetcher: batches ahead of time, in order, and a clean end."""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

from demitasse.data.blocking_queue import QueueClosed
from demitasse.data.prefetch import Batch, Prefetcher
from demitasse.errors import DataError

SOON = 30  # seconds a test may hang before it fails


class Numbers:
    """Fills batches with 0, 1, 2, ...; fails at ``bad``."""

    def __init__(self, bad=None):
        self.filled, self.bad, self.closed = 0, bad, 0
        self.progress = threading.Condition()

    def fill(self, batch):
        if self.filled == self.bad:
            raise DataError("no such number", "numbers", str(self.bad))
        batch.array(0, (2, 3))[...] = self.filled
        with self.progress:
            self.filled += 1
            batch.position = self.filled
            self.progress.notify_all()

    def close(self):
        self.closed += 1

    def until_filled(self, count):
        with self.progress:
            assert self.progress.wait_for(lambda: self.filled >= count, SOON)


def memory(size, dtype):
    return np.zeros(size, dtype)


@pytest.fixture
def prefetching():
    running = []

    def start(source, ahead):
        batches = [Batch(memory, "float32") for _ in range(ahead)]
        running.append(Prefetcher(source, batches, name="numbers"))
        running[-1].start()
        return running[-1]

    yield start
    for prefetcher in running:
        prefetcher.close()


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_batches_come_in_order(prefetching, ahead):
    prefetcher = prefetching(Numbers(), ahead)

    for number in range(20):
        batch = prefetcher.next()
        assert batch.position == number + 1
        np.testing.assert_array_equal(batch.arrays[0], np.full((2, 3), number))
        prefetcher.recycle(batch)


def test_as_many_batches_as_there_are_are_filled_ahead(prefetching):
    source = Numbers()
    prefetcher = prefetching(source, 3)
    source.until_filled(3)

    kept = prefetcher.next()  # not given back: nothing more can be filled
    second, third = prefetcher.next(), prefetcher.next()

    assert source.filled == 3
    assert [b.arrays[0][0, 0] for b in (kept, second, third)] == [0, 1, 2]
    prefetcher.recycle(second)
    assert prefetcher.next().arrays[0][0, 0] == 3


def test_batches_before_the_bad_one_are_delivered_and_then_its_error(prefetching):
    prefetcher = prefetching(Numbers(bad=2), 4)

    assert [prefetcher.next().position for _ in range(2)] == [1, 2]
    for _ in range(2):
        with pytest.raises(DataError, match="numbers, record '2': no such number"):
            prefetcher.next()


def test_closing_ends_the_thread_and_closes_the_source_once(prefetching):
    source = Numbers()
    prefetcher = prefetching(source, 2)
    batch = prefetcher.next()
    before = threading.active_count()

    prefetcher.close()
    prefetcher.close()
    prefetcher.recycle(batch)  # does no harm

    assert source.closed == 1
    assert threading.active_count() == before - 1


def test_a_prefetcher_that_never_started_closes_its_source():
    source = Numbers()

    Prefetcher(source, []).close()

    assert source.closed == 1


def test_an_abandoned_prefetcher_ends_by_itself(prefetching):
    source = Numbers()
    prefetcher = prefetching(source, 2)

    prefetcher.abandon()

    prefetcher._thread._thread.join(SOON)
    while prefetcher._full.try_pop():  # what was filled is still there
        pass
    with pytest.raises(QueueClosed):
        prefetcher.next()
    prefetcher.close()
    assert source.closed == 1


def test_a_running_thread_does_not_keep_the_interpreter_from_ending():
    program = """
import numpy as np
from demitasse.data.prefetch import Batch, Prefetcher
class Source:
    def fill(self, batch): batch.array(0, (1,))[...] = 1
    def close(self): print("closed", flush=True)
p = Prefetcher(Source(), [Batch(lambda n, d: np.zeros(n, d), "float32")])
p.start()
p.next()
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (run.returncode, run.stdout, run.stderr) == (0, "closed\n", "")


def test_memory_is_used_again_when_it_is_large_enough():
    asked = []

    def counting(size, dtype):
        asked.append(size)
        return np.zeros(size, dtype)

    batch = Batch(counting, "float64")

    large = batch.array(0, (4, 5))
    small = batch.array(0, (2, 3))
    batch.array(1, (4,))

    assert [size for size in asked if size] == [20, 4]
    assert np.shares_memory(large, small)
    assert [a.shape for a in batch.arrays] == [(2, 3), (4,)]
    assert all(a.dtype == "float64" and a.flags.c_contiguous for a in batch.arrays)


def test_nothing_is_left_to_collect(prefetching):
    prefetcher = prefetching(Numbers(), 2)
    prefetcher.next()

    prefetcher.close()

    gc.collect()  # warnings about unclosed things would be errors here
