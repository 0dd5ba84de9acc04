"""Threads of a team ask for short turns on a core, where the system lets them."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from demitasse.backends.cpu import threads as timeslice


def length():
    """The calling thread's time slice in nanoseconds; 0 if unknown."""
    found = timeslice._attributes()
    return found[5] if found and found[1] in timeslice.SHARING else 0


@pytest.fixture
def thread():
    """A thread of its own, whose request ends with it."""
    with ThreadPoolExecutor(1) as pool:
        if not pool.submit(length).result():
            pytest.skip("this system does not say how long turns are (Linux does from 6.12 on)")
        yield pool


def test_a_thread_that_asks_has_short_turns(thread):
    thread.submit(timeslice.request_short_slice).result()

    assert thread.submit(length).result() == timeslice.SHORT


def test_threads_that_it_starts_have_them_too(thread):
    thread.submit(timeslice.request_short_slice).result()

    def of_a_new_one():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(length).result()

    assert thread.submit(of_a_new_one).result() == timeslice.SHORT


def test_a_shorter_turn_stands(thread, monkeypatch):
    monkeypatch.setattr(timeslice, "SHORT", 200_000)
    thread.submit(timeslice.request_short_slice).result()
    monkeypatch.setattr(timeslice, "SHORT", 300_000)

    thread.submit(timeslice.request_short_slice).result()

    assert thread.submit(length).result() == 200_000


def test_a_system_without_the_call_is_left_alone(monkeypatch):
    monkeypatch.setattr(timeslice, "CALLS", {})

    timeslice.request_short_slice()

    assert length() == 0
