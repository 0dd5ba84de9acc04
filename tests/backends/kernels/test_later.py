"""Work that is put off: done in order, before anybody looks, and never twice."""

import sys
import threading

import numpy as np
import pytest

from demitasse.backends.kernels.language import later


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    later.settle()


def noted(done, status=0):
    def call(what):
        done.append(what)
        return status

    return call


def test_work_is_done_at_once_unless_it_is_held():
    done = []

    later.put(noted(done), ("a",), None)

    assert done == ["a"]


def test_held_work_is_done_in_order_when_it_is_settled():
    done = []
    later.hold()

    later.put(noted(done), ("a",), None)
    later.put(noted(done), ("b",), None)
    assert done == []
    later.settle()

    assert done == ["a", "b"]
    assert not later.held()


def test_a_flush_does_what_was_put_off_and_goes_on_holding():
    done = []
    later.hold()
    before = later.turn()

    later.put(noted(done), ("a",), None)
    later.flush()
    later.put(noted(done), ("b",), None)

    assert done == ["a"]
    assert later.turn() != before
    later.settle()
    assert done == ["a", "b"]


def test_in_a_block_at_once_nothing_waits():
    done = []
    later.hold()
    later.put(noted(done), ("a",), None)

    with later.at_once():
        later.put(noted(done), ("b",), None)
        assert done == ["a", "b"]
    later.put(noted(done), ("c",), None)

    assert done == ["a", "b"]
    assert later.held()


def test_after_a_failure_nothing_more_is_done_and_nothing_is_held():
    done = []

    def checked(status):
        message = f"status {status}"
        raise RuntimeError(message)

    later.hold()
    later.put(noted(done, status=5), ("a",), None, checked)
    later.put(noted(done), ("b",), None)

    with pytest.raises(RuntimeError, match="status 5"):
        later.settle()

    assert done == ["a"]
    assert not later.held()


def test_what_an_interrupted_pass_put_off_is_forgotten():
    done = []
    later.hold()
    later.put(noted(done), ("a",), None)

    later.hold()
    later.put(noted(done), ("b",), None)
    later.settle()

    assert done == ["b"]


def test_another_thread_does_its_work_at_once():
    done = []
    later.hold()

    thread = threading.Thread(target=lambda: later.put(noted(done), ("there",), None))
    thread.start()
    thread.join()

    assert done == ["there"]


def test_what_work_needs_lives_until_it_is_done():
    alive = np.ones(3)
    later.hold()

    later.put(list, (), alive)
    count = _references(alive)
    later.settle()

    assert _references(alive) == count - 1


def _references(array):
    return sys.getrefcount(array)
