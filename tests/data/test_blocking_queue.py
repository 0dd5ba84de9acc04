"""BlockingQueue: the rules of Caffe's, and closing."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from demitasse.data import blocking_queue
from demitasse.data.blocking_queue import BlockingQueue, QueueClosed
from demitasse.errors import DataError

SOON = 30  # seconds a test may hang before it fails


class WatchedQueue(BlockingQueue):
    """Tells when somebody has begun to wait."""

    def __init__(self, name="queue"):
        super().__init__(name)
        self.awaited = threading.Semaphore(0)
        wait = self._changed.wait

        def watched_wait():
            self.awaited.release()  # the lock is held, so a push comes after the wait begins
            return wait()

        self._changed.wait = watched_wait

    def until_awaited(self):
        assert self.awaited.acquire(timeout=SOON)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as threads:
        yield threads


def test_items_come_out_in_the_order_they_went_in():
    queue = BlockingQueue()

    for item in "abc":
        queue.push(item)

    assert queue.size() == 3
    assert [queue.pop() for _ in range(3)] == ["a", "b", "c"]
    assert queue.size() == 0


def test_trying_an_empty_queue_gives_nothing_and_does_not_wait():
    queue = BlockingQueue()

    assert queue.try_pop() is None
    assert queue.try_peek() is None


def test_trying_a_full_queue_takes_or_looks():
    queue = BlockingQueue()
    queue.push("a")

    assert queue.try_peek() == "a"
    assert queue.peek() == "a"
    assert queue.size() == 1
    assert queue.try_pop() == "a"
    assert queue.size() == 0


@pytest.mark.parametrize(("wait", "left"), [("pop", 0), ("peek", 1)])
def test_pop_and_peek_wait_for_a_push(wait, left, pool):
    queue = WatchedQueue()
    got = pool.submit(getattr(queue, wait))
    queue.until_awaited()

    queue.push("a")

    assert got.result(SOON) == "a"
    assert queue.size() == left
    assert queue.waited > 0


def test_an_item_that_was_only_looked_at_wakes_the_next_waiter(pool):
    queue = WatchedQueue()
    looked, popped = pool.submit(queue.peek), pool.submit(queue.pop)
    queue.until_awaited()
    queue.until_awaited()

    queue.push("a")
    assert popped.result(SOON) == "a"
    queue.push("b")  # the peek may have come after the pop

    assert looked.result(SOON) in {"a", "b"}


def test_a_pop_that_does_not_wait_logs_nothing(caplog):
    caplog.set_level("INFO")
    queue = BlockingQueue()
    queue.push("a")

    queue.pop("no data yet")

    assert caplog.messages == []
    assert queue.waited == 0


def test_some_waits_are_logged(caplog, pool, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(blocking_queue, "LOG_EVERY", 2)
    queue = WatchedQueue()

    for _ in range(3):
        popped = pool.submit(queue.pop, "no data yet")
        queue.until_awaited()
        queue.push("a")
        popped.result(SOON)

    assert caplog.messages == ["no data yet"] * 2


def test_no_item_is_lost_or_doubled_among_many_threads(pool):
    queue = BlockingQueue()
    n = 2000

    def push(start):
        for item in range(start, start + n):
            queue.push(item)

    def pop():
        return [queue.pop() for _ in range(n)]

    pushes = [pool.submit(push, start) for start in (0, n)]
    pops = [pool.submit(pop) for _ in range(2)]
    for done in pushes:
        done.result(SOON)

    assert sorted(item for done in pops for item in done.result(SOON)) == list(range(2 * n))


@pytest.mark.parametrize("wait", ["pop", "peek"])
def test_closing_wakes_every_waiter(wait, pool):
    queue = WatchedQueue("queue of batches")
    waiters = [pool.submit(getattr(queue, wait)) for _ in range(3)]
    for _ in waiters:
        queue.until_awaited()

    queue.close()

    for waiter in waiters:
        with pytest.raises(QueueClosed, match="queue of batches is closed"):
            waiter.result(SOON)


def test_a_closed_queue_gives_what_it_holds_and_then_refuses():
    queue = BlockingQueue()
    queue.push("a")

    queue.close()

    assert queue.closed
    assert queue.pop() == "a"
    with pytest.raises(QueueClosed):
        queue.pop()
    with pytest.raises(QueueClosed):
        queue.push("b")


def test_a_queue_closed_by_an_error_raises_it_after_its_last_item():
    queue = BlockingQueue()
    queue.push("a")

    queue.close(DataError("no such record", "some_lmdb", "00000007"))
    queue.close()

    assert queue.pop() == "a"
    with pytest.raises(DataError, match="some_lmdb, record '00000007': no such record") as caught:
        queue.pop()
    assert caught.value.key == "00000007"


def test_each_pop_raises_an_error_of_its_own():
    queue = BlockingQueue()
    queue.close(DataError("broken"))

    for _ in range(2):  # a net that adds the place must not add it twice
        with pytest.raises(DataError) as caught:
            queue.pop()
        assert str(caught.value.at("layer 'd'")) == "layer 'd': broken"


def test_errors_that_are_not_ours_are_raised_as_they_are():
    queue = BlockingQueue()
    error = ZeroDivisionError("in the thread")
    queue.close(error)

    with pytest.raises(ZeroDivisionError) as caught:
        queue.pop()

    assert caught.value is error
