"""What kernels are given: every field, once, by its name."""

import numpy as np
import pytest
from stages import exported

from demitasse.backends.kernels.language import later
from demitasse.backends.kernels.language.structs import EACH_CALL, Arguments, Struct
from demitasse.backends.kernels.language.words import FLOAT, INT, Word


class Place(Struct):
    """Where floats are."""

    at: Word
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
    target = Place.values(at=EACH_CALL, stride=1)
    return Copy.values(source=Place.values(at=source, stride=2), target=target, **others)


def test_an_integer_has_as_many_bytes_as_the_kernel_reads():
    assert np.dtype(np.int64).itemsize == INT


def test_fields_of_structs_reach_the_kernel():
    source, target = np.arange(10, dtype=np.float32), np.zeros(5, np.float32)
    arguments = Arguments(values(source, count=4))

    arguments.run(exported("copy_by_fields", 8, copy), 1, {"target.at": target})

    assert target.tolist() == [0, 2, 4, 6, 0]


def test_a_forgotten_field_is_named():
    with pytest.raises(TypeError, match=r"Copy was given nothing for count; .* source, target, "):
        values(0)


def test_an_unknown_field_is_named():
    with pytest.raises(TypeError, match="elsewhere, which is no field"):
        values(0, count=1, elsewhere=1)


@pytest.mark.parametrize("value", [1.5, None, "8"])
def test_a_field_is_an_integer_or_an_array(value):
    with pytest.raises(TypeError, match="for stride, which is an integer"):
        Place.values(at=0, stride=value)


@pytest.mark.parametrize("source", [0, EACH_CALL])
def test_a_struct_in_a_struct_is_given_whole(source):
    with pytest.raises(TypeError, match=r"for source, which is Place.values\(...\)"):
        Copy.values(source=source, target=Place.values(at=0, stride=1), count=1)


@pytest.mark.parametrize("each", [{}, {"source.at": 0}, {"target.at": 0, "count": 1}])
def test_a_call_gives_what_changes_and_nothing_else(each):
    arguments = Arguments(values(np.zeros(1, np.float32), count=0))

    with pytest.raises(TypeError, match=r"give it target.at"):
        arguments.run(0, 1, each)


class Cell(Struct):
    """An integer that is written."""

    at: Word
    """Its address."""
    value: Word
    """The integer."""


def test_a_kernel_put_off_twice_has_what_it_was_given_each_time():
    def write(k):
        f = Cell.read(k)
        k.store_word(f.value, f.at)

    first, second = np.zeros(1, np.int64), np.zeros(1, np.int64)
    kernel = exported("cell_put_off", 8, write)
    arguments = Arguments(Cell.values(at=EACH_CALL, value=EACH_CALL))

    later.hold()
    arguments.run(kernel, 1, {"at": first, "value": 3})
    arguments.run(kernel, 1, {"at": second, "value": 5})
    later.settle()

    assert (first[0], second[0]) == (3, 5)
