"""Prefetcher: batches ahead of time and in order, errors where they are awaited, a clean end."""

import contextvars
import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.core.device import current_device, use_device
from demitasse.errors import DataError, ErrorCode
from demitasse.io.data import prefetch
from demitasse.io.data.prefetch import Prefetcher, PrefetcherClosed
from demitasse.io.data.sources.source import Batch

SOON = 30  # seconds a test may hang before it fails


class Numbers:
    """Fills batches with 0, 1, 2, ...; raises an error at ``bad``."""

    def __init__(self, bad=None, error=None):
        self.filled, self.bad, self.closed = 0, bad, 0
        self.error = error or DataError("no such number", "numbers", str(bad))
        self.progress = threading.Condition()

    def fill(self, batch):
        if self.filled == self.bad:
            raise self.error
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


class Held(Numbers):
    """Fills a batch when it is allowed to."""

    def __init__(self):
        super().__init__()
        self.allowed = threading.Semaphore(0)

    def fill(self, batch):
        assert self.allowed.acquire(timeout=SOON)
        super().fill(batch)


class Asked(Prefetcher):
    """Tells when somebody has begun to wait for a batch."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.awaited = threading.Semaphore(0)

    def _wait(self):
        self.awaited.release()
        return super()._wait()

    def until_awaited(self):
        assert self.awaited.acquire(timeout=SOON)


def memory(size, dtype):
    return np.zeros(size, dtype)


@pytest.fixture
def prefetching():
    running = []

    def start(source, ahead, kind=Prefetcher, **options):
        batches = [Batch(memory, "float32") for _ in range(ahead)]
        running.append(kind(source, batches, name="numbers", **options))
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
        with expect_error(DataError, mentions=["numbers", "'2'"]):
            prefetcher.next()


def test_each_caller_gets_an_error_of_its_own(prefetching):
    prefetcher = prefetching(Numbers(0, DataError("broken")), 2)

    for _ in range(2):  # a net that adds the place must not add it twice
        with pytest.raises(DataError) as caught:
            prefetcher.next()
        assert str(caught.value.at("layer 'd'")) == "layer 'd': broken"


def test_errors_that_are_not_ours_are_raised_as_they_are(prefetching):
    error = ZeroDivisionError("in the thread")
    prefetcher = prefetching(Numbers(0, error), 2)

    with pytest.raises(ZeroDivisionError) as caught:
        prefetcher.next()

    assert caught.value is error


def test_after_an_error_the_source_is_closed(prefetching):
    source = Numbers(bad=0)

    prefetching(source, 2).close()

    assert source.closed == 1


def test_waits_are_timed(prefetching):
    source = Held()
    prefetcher = prefetching(source, 2, Asked)
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(prefetcher.next)
        prefetcher.until_awaited()

        source.allowed.release()

        assert batch.result(SOON).position == 1
    assert prefetcher.waited > 0
    source.allowed.release()  # it fills the second one already


def test_a_batch_that_is_there_is_not_waited_for(prefetching, caplog):
    caplog.set_level("INFO")
    source = Numbers()
    prefetcher = prefetching(source, 2, log_on_wait="no data yet")
    source.until_filled(2)  # so the first one is in the queue

    prefetcher.next()

    assert prefetcher.waited == 0
    assert caplog.messages == []


def test_some_waits_are_logged(prefetching, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(prefetch, "LOG_EVERY", 2)
    source = Held()
    prefetcher = prefetching(source, 1, Asked, log_on_wait="no data yet")

    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            batch = pool.submit(prefetcher.next)
            prefetcher.until_awaited()
            source.allowed.release()
            prefetcher.recycle(batch.result(SOON))
    source.allowed.release()

    assert caplog.messages == ["no data yet"] * 2


def test_stopping_wakes_whoever_waits_for_a_batch(prefetching):
    source = Held()
    prefetcher = prefetching(source, 1, Asked)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(prefetcher.next) for _ in range(2)]
        for _ in waiting:
            prefetcher.until_awaited()

        prefetcher.abandon()
        source.allowed.release()

        delivered = [one for one in waiting if one.exception(SOON) is None]
        refused = [one.exception(SOON) for one in waiting if one not in delivered]
    assert len(delivered) == 1  # what was being filled is not lost
    assert [error.code for error in refused] == [ErrorCode.BAD_STATE]


def test_stopping_wakes_a_thread_that_waits_for_a_free_batch(prefetching):
    source = Numbers()
    prefetcher = prefetching(source, 1)
    source.until_filled(1)

    prefetcher.close()

    assert source.closed == 1
    assert prefetcher.next().position == 1
    with expect_error(PrefetcherClosed, ErrorCode.BAD_STATE, mentions="numbers"):
        prefetcher.next()


def test_no_batch_is_lost_or_doubled_among_many_threads(prefetching):
    prefetcher = prefetching(Numbers(), 4)

    def take(_):
        batch = prefetcher.next()
        number = batch.position
        prefetcher.recycle(batch)
        return number

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(take, range(1000)))

    assert sorted(taken) == list(range(1, 1001))


def test_the_thread_sees_context_variables_but_does_not_change_ours(prefetching):
    variable = contextvars.ContextVar("variable", default="nobody's")
    variable.set("ours")
    seen = []

    class Looking(Numbers):
        def fill(self, batch):
            seen.append((variable.get(), str(current_device())))
            variable.set("the thread's")
            super().fill(batch)

    with use_device("strict:device1"):
        prefetcher = prefetching(Looking(), 1)
    prefetcher.next()
    prefetcher.close()

    assert seen == [("ours", "strict:device1")]
    assert variable.get() == "ours"


def test_closing_ends_the_thread_and_closes_the_source_once(prefetching):
    source = Numbers()
    prefetcher = prefetching(source, 2)
    batch = prefetcher.next()
    assert prefetcher._thread.is_alive()

    prefetcher.close()
    prefetcher.close()
    prefetcher.recycle(batch)  # does no harm

    assert source.closed == 1
    assert not prefetcher._thread.is_alive()


def test_a_prefetcher_that_never_started_closes_its_source():
    source = Numbers()

    prefetcher = Prefetcher(source, [])
    prefetcher.close()

    assert source.closed == 1
    with pytest.raises(PrefetcherClosed):
        prefetcher.next()


def test_an_abandoned_prefetcher_ends_by_itself(prefetching):
    source = Numbers()
    prefetcher = prefetching(source, 2)

    prefetcher.abandon()

    prefetcher._thread.join(SOON)
    assert source.closed == 1
    for _ in range(source.filled):  # what was filled is still there
        prefetcher.next()
    with pytest.raises(PrefetcherClosed):
        prefetcher.next()


def test_a_running_thread_does_not_keep_the_interpreter_from_ending():
    program = """
import numpy as np
from demitasse.io.data.prefetch import Prefetcher
from demitasse.io.data.sources.source import Batch
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
