"""Deferred calls are issued in order and once; recorded calls are replayed, in tables or alone."""

import sys
import threading

import numpy as np
import pytest

from demitasse.backends.kernels.language import command_queue
from demitasse.backends.kernels.language.command_queue import CallRecorder
from demitasse.backends.kernels.language.structs import RUNTIME, Address, Arguments, Struct
from demitasse.backends.kernels.language.words import INT, Word
from demitasse.backends.recording import NotRecorded
from demitasse.core.config import settings


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    command_queue.end()


def noted(done):
    return done.append


def test_work_is_done_at_once_unless_it_is_held():
    done = []

    command_queue.enqueue(noted(done), ("a",))

    assert done == ["a"]


def test_held_work_is_done_in_order_when_it_is_settled():
    done = []
    command_queue.begin()

    command_queue.enqueue(noted(done), ("a",))
    command_queue.enqueue(noted(done), ("b",))
    assert done == []
    command_queue.end()

    assert done == ["a", "b"]
    assert command_queue._own.calls is None


def test_in_a_block_at_once_nothing_waits():
    done = []
    command_queue.begin()
    command_queue.enqueue(noted(done), ("a",))

    with command_queue.immediate():
        command_queue.enqueue(noted(done), ("b",))
        assert done == ["a", "b"]
    command_queue.enqueue(noted(done), ("c",))

    assert done == ["a", "b"]
    assert command_queue._own.calls is not None


def test_after_a_failure_nothing_more_is_done_and_nothing_is_held():
    done = []

    def failing(what):
        done.append(what)
        raise RuntimeError(what)

    command_queue.begin()
    command_queue.enqueue(failing, ("a",))
    command_queue.enqueue(noted(done), ("b",))

    with pytest.raises(RuntimeError, match="a"):
        command_queue.end()

    assert done == ["a"]
    assert command_queue._own.calls is None


def test_what_an_interrupted_pass_put_off_is_forgotten():
    done = []
    command_queue.begin()
    command_queue.enqueue(noted(done), ("a",))

    command_queue.begin()
    command_queue.enqueue(noted(done), ("b",))
    command_queue.end()

    assert done == ["b"]


def test_another_thread_does_its_work_at_once():
    done = []
    command_queue.begin()

    thread = threading.Thread(target=lambda: command_queue.enqueue(noted(done), ("there",)))
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


class Fill(Struct):
    """Integers that a kernel writes."""

    at: Address
    value: Word
    count: Word


@pytest.fixture
def fill():
    """A function that runs a kernel: it writes the first integers of a buffer."""
    from stages import exported

    def write(k):
        f = Fill.read(k)
        with k.loop(f.count) as loop:
            k.store_word(f.value, f.at + loop.i * INT)

    kernel = exported("fill", 8, write)
    arguments = Arguments(Fill.values(value=RUNTIME, count=RUNTIME))
    return lambda buffer, value, count: arguments.run(
        kernel, 1, {"at": buffer, "value": value, "count": count}
    )


def record(work):
    return CallRecorder(lambda: 0).record(work)


def test_recorded_calls_are_replayed_in_their_order(fill):
    buffer, seen = np.zeros(8, np.int64), []

    def work():
        fill(buffer, 1, 8)
        fill(buffer, 2, 4)
        command_queue.enqueue(lambda: seen.append(buffer.tolist()), ())
        fill(buffer, 3, 2)

    recording = record(work)
    fill(buffer, 9, 8)
    recording.play()

    assert (len(recording), recording.compiled) == (4, False)
    assert buffer.tolist() == [3, 3, 2, 2, 1, 1, 1, 1]
    assert seen == [[2, 2, 2, 2, 1, 1, 1, 1]] * 2


def test_a_recording_of_kernels_alone_is_compiled(fill):
    buffer = np.zeros(2, np.int64)

    recording = record(lambda: fill(buffer, 7, 1))
    buffer[:] = 0
    recording.play()

    assert recording.compiled
    assert buffer.tolist() == [7, 0]


def test_deferred_calls_are_recorded_when_they_are_issued(fill):
    buffer = np.zeros(2, np.int64)

    def deferred():
        command_queue.begin()
        fill(buffer, 5, 1)

    recording = record(deferred)
    other = record(command_queue.end)

    assert (len(recording), len(other)) == (0, 1)


def test_calls_within_a_call_are_not_recorded_themselves(fill):
    buffer, seen = np.zeros(1, np.int64), []

    def work():
        fill(buffer, 7, 1)
        seen.append(buffer[0])

    recording = record(lambda: command_queue.enqueue(work, ()))
    recording.play()

    assert (len(recording), seen) == (1, [7, 7])


def test_without_kernels_the_calls_of_python_are_replayed():
    seen = []
    with settings.override(jit=False):
        recording = record(lambda: command_queue.enqueue(seen.append, (1,)))
        recording.play()

    assert seen == [1, 1]


def test_work_without_calls_is_not_recorded():
    command_queue.mark_incomplete()  # nothing is recorded now

    with pytest.raises(NotRecorded):
        record(command_queue.mark_incomplete)
