"""InternalThread: started once, stopped cleanly, its errors raised where its work is awaited."""

import contextvars
import threading

import pytest

from demitasse.data.blocking_queue import BlockingQueue, QueueClosed
from demitasse.data.internal_thread import InternalThread
from demitasse.device import current_device, use_device
from demitasse.errors import DataError, DemitasseError

SOON = 30  # seconds a test may hang before it fails


def wait_to_be_stopped(thread):
    stopped = threading.Event()
    while not thread.must_stop():
        stopped.wait(0.001)


def test_a_thread_runs_until_it_is_stopped():
    begun = threading.Event()

    def work(thread):
        begun.set()
        wait_to_be_stopped(thread)

    worker = InternalThread(work)
    assert not worker.is_started()

    worker.start()
    assert begun.wait(SOON)
    assert worker.is_started()
    assert not worker.must_stop()

    worker.stop()
    assert not worker.is_started()
    assert worker.must_stop()


def test_a_second_start_is_refused():
    worker = InternalThread(wait_to_be_stopped, name="reader")
    worker.start()

    with pytest.raises(DemitasseError, match="'reader' was started already"):
        worker.start()

    worker.stop()


def test_a_stopped_thread_can_be_started_again():
    runs = []
    worker = InternalThread(lambda thread: (runs.append(1), wait_to_be_stopped(thread)))

    for _ in range(2):
        worker.start()
        worker.stop()

    assert runs == [1, 1]


def test_stopping_a_thread_that_never_ran_does_nothing():
    InternalThread(wait_to_be_stopped).stop()


def test_stop_wakes_a_thread_that_waits_at_its_queue():
    queue = BlockingQueue()
    ended = []

    def work(thread):
        try:
            queue.pop()
        except QueueClosed:
            ended.append("woken")
            raise

    worker = InternalThread(work, [queue])
    worker.start()

    worker.stop()

    assert ended == ["woken"]
    assert worker.error is None  # being stopped is no error


def test_a_thread_may_stop_itself():
    stopped = threading.Event()

    def work(thread):
        thread.stop()
        stopped.set()

    InternalThread(work).start()

    assert stopped.wait(SOON)


def test_an_exception_in_the_thread_is_raised_where_its_queue_is_popped():
    queue = BlockingQueue()

    def work(thread):
        queue.push("good")
        raise DataError("damaged", "some_lmdb", "key")

    worker = InternalThread(work, [queue])
    worker.start()

    assert queue.pop() == "good"
    with pytest.raises(DataError, match="some_lmdb, record 'key': damaged"):
        queue.pop()
    worker.stop()


def test_a_thread_that_returns_closes_its_queues():
    queue = BlockingQueue()
    worker = InternalThread(lambda thread: None, [queue])
    worker.start()

    with pytest.raises(QueueClosed):
        queue.pop()
    worker.stop()


def test_the_thread_inherits_the_device_setting():
    found = BlockingQueue()
    worker = InternalThread(lambda thread: found.push(str(current_device())), [found])

    with use_device("strict:device1"):
        worker.start()

    assert found.pop() == "strict:device1"
    worker.stop()


def test_the_thread_inherits_context_variables_but_does_not_change_ours():
    variable = contextvars.ContextVar("variable", default="nobody's")
    variable.set("ours")
    found = BlockingQueue()

    def work(thread):
        found.push(variable.get())
        variable.set("the thread's")

    worker = InternalThread(work, [found])
    worker.start()

    assert found.pop() == "ours"
    worker.stop()
    assert variable.get() == "ours"


def test_the_entry_is_told_seed_and_rank():
    found = BlockingQueue()
    worker = InternalThread(
        lambda thread: found.push((thread.seed, thread.rank, thread.ranks)),
        [found],
        seed=7,
        rank=1,
        ranks=3,
    )

    worker.start()

    assert found.pop() == (7, 1, 3)
    worker.stop()
