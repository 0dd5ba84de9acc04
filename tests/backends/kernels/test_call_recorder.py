"""Recorded calls are replayed in order, kernels by a table and functions one by one."""

import threading

import numpy as np
import pytest

from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.language.call_recorder import CallRecorder
from demitasse.backends.kernels.language.structs import RUNTIME, Address, Arguments, Struct
from demitasse.backends.kernels.language.values import INT, Word
from demitasse.backends.recording import NotRecorded
from demitasse.core.config import settings


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
        call_recorder.call(lambda: seen.append(buffer.tolist()))
        fill(buffer, 3, 2)

    recording = record(work)
    fill(buffer, 9, 8)
    recording.play()

    assert (len(recording), recording.compiled) == (4, False)
    assert buffer.tolist() == [3, 3, 2, 2, 1, 1, 1, 1]
    assert seen == [[2, 2, 2, 2, 1, 1, 1, 1]] * 2


@pytest.mark.parametrize("uses_blas", [True, False])
def test_calls_without_blas_leave_a_recording_compiled(fill, uses_blas):
    buffer, seen = np.zeros(8, np.int64), []

    def work():
        fill(buffer, 1, 8)
        call_recorder.call(seen.append, 5, uses_blas=uses_blas)

    recording = record(work)
    recording.play()

    assert recording.compiled is not uses_blas
    assert seen == [5, 5]


def test_a_recording_of_kernels_alone_is_compiled(fill):
    buffer = np.zeros(2, np.int64)

    recording = record(lambda: fill(buffer, 7, 1))
    buffer[:] = 0
    recording.play()

    assert recording.compiled
    assert buffer.tolist() == [7, 0]


def test_calls_of_another_thread_are_not_recorded(fill):
    buffer = np.zeros(2, np.int64)

    def work():
        thread = threading.Thread(target=fill, args=(buffer, 5, 1))
        thread.start()
        thread.join()

    assert len(record(work)) == 0
    assert buffer.tolist() == [5, 0]


def test_after_a_failure_nothing_is_recorded(fill):
    def failing():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        record(lambda: call_recorder.call(failing))

    assert call_recorder._own.recording is None


def test_calls_within_a_call_are_not_recorded_themselves(fill):
    buffer, seen = np.zeros(1, np.int64), []

    def work():
        fill(buffer, 7, 1)
        seen.append(buffer[0])

    recording = record(lambda: call_recorder.call(work))
    recording.play()

    assert (len(recording), seen) == (1, [7, 7])


def test_without_kernels_the_calls_of_python_are_replayed():
    seen = []
    with settings.override(jit=False):
        recording = record(lambda: call_recorder.call(seen.append, 1))
        recording.play()

    assert seen == [1, 1]


def test_work_without_calls_is_not_recorded():
    call_recorder.mark_incomplete()  # nothing is recorded now

    with pytest.raises(NotRecorded):
        record(call_recorder.mark_incomplete)
