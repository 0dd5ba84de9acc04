"""What kernels are given: every field, once, by its name."""

import gc
import weakref

import numpy as np
import pytest
from expect_error import expect_error
from stages import exported

from demitasse.backends.kernels.language.call_recorder import CallRecorder
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    OptionalAddress,
    Struct,
)
from demitasse.backends.kernels.language.values import FLOAT, INT, Word

FLOATS = np.zeros(4, np.float32)


class Place(Struct):
    """Where floats are."""

    at: Address
    """Address of the first."""
    stride: Word
    """Elements from one to the next."""


class Copy(Struct):
    """Floats that are copied."""

    source: Place
    """From there."""
    target: Place
    """To there."""
    count: Word
    """How many."""


def copy(k):
    f = Copy.read(k)
    with k.loop(f.count) as loop:
        number = k.load_float(f.source.at + loop.i * f.source.stride * FLOAT)
        k.store(number, f.target.at + loop.i * f.target.stride * FLOAT)


def values(source, **others):
    target = Place.values(at=RUNTIME, stride=1)
    return Copy.values(source=Place.values(at=source, stride=2), target=target, **others)


def test_an_integer_has_as_many_bytes_as_the_kernel_reads():
    assert np.dtype(np.int64).itemsize == INT


def test_fields_of_structs_reach_the_kernel():
    source, target = np.arange(10, dtype=np.float32), np.zeros(5, np.float32)
    arguments = Arguments(values(source, count=4))

    arguments.run(exported("copy_by_fields", 8, copy), 1, {"target.at": target})

    assert target.tolist() == [0, 2, 4, 6, 0]


def test_a_kernel_calls_another_with_changed_fields():
    source, target = np.arange(10, dtype=np.float32), np.zeros(5, np.float32)
    arguments = Arguments(values(source, count=4))

    def call(k):
        f = Copy.read(k)
        changes = {"count": f.count - 1, "source.at": f.source.at + FLOAT}
        k.call_at(k.word(exported("copy_by_fields", 8, copy)), f.store(k, changes), 0, 1)

    arguments.run(exported("copy_of_changed_fields", 8, call), 1, {"target.at": target})

    assert target.tolist() == [1, 3, 5, 0, 0]


def test_a_forgotten_field_is_named():
    with expect_error(TypeError, mentions=["Copy", "nothing for count"]):
        values(FLOATS)


def test_an_unknown_field_is_named():
    with expect_error(TypeError, mentions="elsewhere"):
        values(FLOATS, count=1, elsewhere=1)


@pytest.mark.parametrize("value", [1.5, None, "8", FLOATS])
def test_a_word_is_an_integer(value):
    with expect_error(TypeError, mentions="stride"):
        Place.values(at=FLOATS, stride=value)


@pytest.mark.parametrize("value", [0, 1 << 20, None, np.zeros(0, np.float32)])
def test_an_address_is_given_as_an_array_that_has_elements(value):
    with expect_error(TypeError, mentions="at"):
        Place.values(at=value, stride=1)


@pytest.mark.parametrize("value", [0, 1 << 20, None])
def test_an_address_of_each_call_is_given_as_an_array(value):
    arguments = Arguments(values(FLOATS, count=1))

    with expect_error(TypeError, mentions="target.at"):
        arguments.run(0, 1, {"target.at": value})


def test_only_an_optional_address_may_be_none():
    class Maybe(Struct):
        at: OptionalAddress

    found = Maybe.values(at=None)

    assert found.flat == {"at": 0}
    with expect_error(TypeError, mentions="at"):
        Maybe.values(at=0)


def test_memory_lives_as_long_as_a_recording_of_the_call():
    source, target = np.arange(10, dtype=np.float32), np.zeros(5, np.float32)
    arguments, alive = Arguments(values(source, count=4)), weakref.ref(target)
    kernel = exported("copy_by_fields", 8, copy)

    recording = CallRecorder(lambda: 0).record(
        lambda target=target[:]: arguments.run(kernel, 1, {"target.at": target})
    )
    del target
    gc.collect()
    alive()[:] = 0
    recording.play()

    assert alive().tolist() == [0, 2, 4, 6, 0]


@pytest.mark.parametrize("source", [0, RUNTIME])
def test_a_struct_in_a_struct_is_given_whole(source):
    with expect_error(TypeError, mentions=["source", "Place.values"]):
        Copy.values(source=source, target=Place.values(at=FLOATS, stride=1), count=1)


@pytest.mark.parametrize("each", [{}, {"source.at": 0}, {"target.at": 0, "count": 1}])
def test_a_call_gives_what_changes_and_nothing_else(each):
    arguments = Arguments(values(np.zeros(1, np.float32), count=0))

    with expect_error(TypeError, mentions="target.at"):
        arguments.run(0, 1, each)


class Cell(Struct):
    """An integer that is written."""

    at: Address
    """Its address."""
    value: Word
    """The integer."""


def test_a_kernel_that_is_recorded_twice_has_what_it_was_given_each_time():
    def write(k):
        f = Cell.read(k)
        k.store_word(f.value, f.at)

    first, second = np.zeros(1, np.int64), np.zeros(1, np.int64)
    kernel = exported("cell_put_off", 8, write)
    arguments = Arguments(Cell.values(at=RUNTIME, value=RUNTIME))

    def work():
        arguments.run(kernel, 1, {"at": first, "value": 3})
        arguments.run(kernel, 1, {"at": second, "value": 5})

    recording = CallRecorder(lambda: 0).record(work)
    first[0] = second[0] = 0
    recording.play()

    assert (first[0], second[0]) == (3, 5)
