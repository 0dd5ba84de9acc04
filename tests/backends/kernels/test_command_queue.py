"""Deferred calls are issued in order and once; recorded calls are replayed, in tables or alone."""

import ctypes
import os
import sys
import threading

import numpy as np
import pytest

from demitasse.backends.kernels.language import command_queue
from demitasse.backends.kernels.language.command_queue import CallRecorder
from demitasse.backends.recording import NotRecorded
from demitasse.core.config import settings

LIBC = ctypes.CDLL("ucrtbase" if os.name == "nt" else None)


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    command_queue.end()


def noted(done, status=0):
    def call(what):
        done.append(what)
        return status

    return call


def test_work_is_done_at_once_unless_it_is_held():
    done = []

    command_queue.enqueue(noted(done), ("a",), None)

    assert done == ["a"]


def test_held_work_is_done_in_order_when_it_is_settled():
    done = []
    command_queue.begin()

    command_queue.enqueue(noted(done), ("a",), None)
    command_queue.enqueue(noted(done), ("b",), None)
    assert done == []
    command_queue.end()

    assert done == ["a", "b"]
    assert not command_queue.deferring()


def test_a_flush_does_what_was_put_off_and_goes_on_holding():
    done = []
    command_queue.begin()

    first = command_queue.enqueue(noted(done), ("a",), None)
    command_queue.flush()
    second = command_queue.enqueue(noted(done), ("b",), None)

    assert done == ["a"]
    assert first != second
    command_queue.end()
    assert done == ["a", "b"]


def test_a_wait_issues_deferred_calls_of_its_epoch_alone():
    done = []
    at_once = command_queue.enqueue(noted(done), ("a",), None)
    command_queue.begin()
    first = command_queue.enqueue(noted(done), ("b",), None)
    command_queue.flush()
    second = command_queue.enqueue(noted(done), ("c",), None)

    command_queue.wait(at_once)
    command_queue.wait(first)
    assert done == ["a", "b"]
    command_queue.wait(second)

    assert done == ["a", "b", "c"]
    assert command_queue.deferring()


def test_in_a_block_at_once_nothing_waits():
    done = []
    command_queue.begin()
    command_queue.enqueue(noted(done), ("a",), None)

    with command_queue.immediate():
        command_queue.enqueue(noted(done), ("b",), None)
        assert done == ["a", "b"]
    command_queue.enqueue(noted(done), ("c",), None)

    assert done == ["a", "b"]
    assert command_queue.deferring()


def test_after_a_failure_nothing_more_is_done_and_nothing_is_held():
    done = []

    def checked(status):
        message = f"status {status}"
        raise RuntimeError(message)

    command_queue.begin()
    command_queue.enqueue(noted(done, status=5), ("a",), None, checked)
    command_queue.enqueue(noted(done), ("b",), None)

    with pytest.raises(RuntimeError, match="status 5"):
        command_queue.end()

    assert done == ["a"]
    assert not command_queue.deferring()


def test_what_an_interrupted_pass_put_off_is_forgotten():
    done = []
    command_queue.begin()
    command_queue.enqueue(noted(done), ("a",), None)

    command_queue.begin()
    command_queue.enqueue(noted(done), ("b",), None)
    command_queue.end()

    assert done == ["b"]


def test_another_thread_does_its_work_at_once():
    done = []
    command_queue.begin()

    thread = threading.Thread(target=lambda: command_queue.enqueue(noted(done), ("there",), None))
    thread.start()
    thread.join()

    assert done == ["there"]


def test_what_work_needs_lives_until_it_is_done():
    alive = np.ones(3)
    command_queue.begin()

    command_queue.enqueue(list, (), alive)
    count = _references(alive)
    command_queue.end()

    assert _references(alive) == count - 1


def _references(array):
    return sys.getrefcount(array)


# -- recordings --------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["in a table", "one by one"])
def jit(request):
    with settings.override(jit=request.param):
        yield request.param


@pytest.fixture(autouse=True)
def _addresses_are_whole(monkeypatch):
    monkeypatch.setattr(LIBC.memset, "argtypes", (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t))


def record(work):
    return CallRecorder(lambda: 0).record(work)


def fill(buffer, byte, size):
    """Enqueue a call that writes the first bytes of a buffer."""
    command_queue.enqueue(LIBC.memset, (buffer.ctypes.data, byte, size), buffer)


def test_recorded_calls_are_replayed_in_their_order(jit):
    buffer, seen = np.zeros(8, np.uint8), []

    def work():
        fill(buffer, 1, 8)
        fill(buffer, 2, 4)
        command_queue.enqueue(lambda: seen.append(buffer.tolist()), (), None)
        fill(buffer, 3, 2)

    recording = record(work)
    fill(buffer, 9, 8)
    recording.play()

    assert len(recording) == 4
    assert buffer.tolist() == [3, 3, 2, 2, 1, 1, 1, 1]
    assert seen == [[2, 2, 2, 2, 1, 1, 1, 1]] * 2


def test_deferred_calls_are_recorded_when_they_are_issued(jit):
    buffer = np.zeros(2, np.uint8)

    def deferred():
        command_queue.begin()
        fill(buffer, 5, 1)

    recording = record(deferred)
    other = record(command_queue.end)

    assert (len(recording), len(other)) == (0, 1)


def test_a_failure_ends_the_table_and_is_raised(jit):
    buffer, statuses = np.zeros(4, np.uint8), []

    def check(status):
        statuses.append(status)
        raise OSError(status)

    def work():
        command_queue.enqueue(LIBC.abs, (0,), None, check)
        command_queue.enqueue(LIBC.abs, (0,), None, check, lambda: ((-7,), None))
        fill(buffer, 5, 4)

    recording = record(work)
    buffer[:] = 0

    for _ in range(2):  # the table still has the flags of checked results
        with pytest.raises(OSError, match="7"):
            recording.play()

    assert statuses == [7, 7]
    assert not buffer.any()


def test_a_replay_has_the_arguments_of_the_time_of_the_call(jit):
    buffer, byte = np.zeros(1, np.uint8), [4]

    def arguments():
        return (buffer.ctypes.data, byte[0], 1), None

    recording = record(
        lambda: command_queue.enqueue(LIBC.memset, arguments()[0], buffer, None, arguments)
    )
    byte[0] = 6
    buffer[0] = 0
    recording.play()

    assert buffer[0] == 4


def test_work_without_calls_is_not_recorded():
    command_queue.mark_incomplete()  # nothing is recorded now

    with pytest.raises(NotRecorded):
        record(command_queue.mark_incomplete)
