"""Calls that were noted are made again, in rows of compiled code or one by one."""

import ctypes

import numpy as np
import pytest

from demitasse.backends.kernels.language import later
from demitasse.backends.kernels.language.notes import Notes
from demitasse.core.config import settings

LIBC = ctypes.CDLL(None)


@pytest.fixture(params=[True, False], ids=["in a row", "one by one"])
def jit(request):
    with settings.override(jit=request.param):
        yield request.param


def fill(buffer, byte, size):
    """Put a call that writes the first bytes of a buffer."""
    later.put(LIBC.memset, (buffer.ctypes.data, byte, size), buffer)


@pytest.fixture(autouse=True)
def _addresses_are_whole(monkeypatch):
    monkeypatch.setattr(LIBC.memset, "argtypes", (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t))


def test_calls_are_made_again_in_their_order(jit):
    buffer, seen, notes = np.zeros(8, np.uint8), [], Notes()

    with later.note(notes):
        fill(buffer, 1, 8)
        fill(buffer, 2, 4)
        later.put(lambda: seen.append(buffer.tolist()), (), None)
        fill(buffer, 3, 2)
    fill(buffer, 9, 8)
    notes.play()

    assert len(notes) == 4
    assert buffer.tolist() == [3, 3, 2, 2, 1, 1, 1, 1]
    assert seen == [[2, 2, 2, 2, 1, 1, 1, 1]] * 2


def test_what_was_put_off_is_noted_when_it_is_done(jit):
    buffer, notes = np.zeros(2, np.uint8), Notes()

    with later.note(notes):
        later.hold()
        fill(buffer, 5, 1)
        before = len(notes)
        later.settle()

    assert (before, len(notes)) == (0, 1)


def test_a_failure_ends_the_row_and_is_told(jit):
    buffer, notes, told = np.zeros(4, np.uint8), Notes(), []

    def check(status):
        told.append(status)
        raise OSError(status)

    absolute = LIBC.abs
    with later.note(notes):
        later.put(absolute, (0,), None, check)
        later.put(absolute, (0,), None, check, lambda: ((-7,), None))
        fill(buffer, 5, 4)
    buffer[:] = 0

    for _ in range(2):  # the table still says what is to be checked
        with pytest.raises(OSError, match="7"):
            notes.play()

    assert told == [7, 7]
    assert not buffer.any()


def test_arguments_stay_those_of_the_time_of_the_call(jit):
    buffer, notes, byte = np.zeros(1, np.uint8), Notes(), [4]

    def fixed():
        return (buffer.ctypes.data, byte[0], 1), None

    with later.note(notes):
        later.put(LIBC.memset, (buffer.ctypes.data, byte[0], 1), buffer, fixed=fixed)
    byte[0] = 6
    buffer[0] = 0
    notes.play()

    assert buffer[0] == 4


def test_what_is_computed_otherwise_spoils_notes():
    notes = Notes()

    with later.note(notes):
        later.spoil()
    later.spoil()  # nobody takes notes

    assert not notes.whole
