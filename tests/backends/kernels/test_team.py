"""Kernels on all threads of a team."""

import ctypes

import numpy as np
import pytest
from stages import WIDTH, exported

from demitasse.backends.kernels.language import team
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct
from demitasse.backends.kernels.language.words import Word, chunk


class Vectors(Struct):
    """Vectors that threads divide."""

    at: Address
    """Address of the first."""
    count: Word
    """How many."""


def twice(k):
    """Write that every thread of the team doubles its part of an array's vectors."""
    f = Vectors.read(k)
    begin, end = chunk(f.count, *k.thread())
    with k.loop(end, begin) as loop:
        place = f.at + loop.i * k.vector_bytes
        k.store(k.load(place) + k.load(place), place)


@WIDTH
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_team_does_all_of_the_work_once(width, threads):
    kernel = exported(f"twice{threads}x{width}", width, twice)
    array = np.arange(width * 37, dtype=np.float32)

    Arguments(Vectors.values(at=array, count=37)).run(kernel, threads)

    assert np.array_equal(array, 2 * np.arange(width * 37))


def test_without_openmp_one_thread_does_it(monkeypatch):
    monkeypatch.setattr(team, "openmp", lambda: None)
    kernel = exported("alone", 8, twice)
    array = np.arange(8 * 3, dtype=np.float32)

    Arguments(Vectors.values(at=array, count=3)).run(kernel, 2)

    assert np.array_equal(array, 2 * np.arange(8 * 3))
    number, count = team.functions.__wrapped__().values()
    ask = ctypes.CFUNCTYPE(ctypes.c_int)
    assert (ask(number)(), ask(count)()) == (0, 1)
