"""Gradients that are added up and handed on, against numpy, to the bit."""

import numpy as np
import pytest
from stages import WIDTH, normal

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.elementwise import AddReluScatter, Rows
from demitasse.backends.kernels.tuning import Tuning


def arrays(count, size):
    made = [aligned(size) for _ in range(count)]
    for seed, array in enumerate(made):
        array[...] = normal(size, seed=seed)
    return made


def expected(sources, y):
    total = sources[0].copy()
    for array in sources[1:]:
        total += array
    return total if y is None else np.where(y > 0, total, np.float32(0))


@WIDTH
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "relu"])
@pytest.mark.parametrize(("sources", "targets"), [(1, 2), (2, 1), (2, 2), (4, 3)])
@pytest.mark.parametrize("size", [1, 16, 4099, 40000])
def test_each_target_is_the_sum(size, sources, targets, relu, threads, width):
    given, y = arrays(sources, size), normal(size, seed=9) if relu else None
    written = [np.full(size + 16, 7, np.float32) for _ in range(targets)]
    total = np.empty(size, np.float32)
    tuning = Tuning(width=width, threads=threads)
    run = AddReluScatter(Rows.all_of(size), sources, targets, tuning, relu=relu, total=True)

    run(given, written, y, total)

    wanted = expected(given, y)
    np.testing.assert_array_equal(total, wanted)
    for array in written:
        np.testing.assert_array_equal(array[:size], wanted)
        np.testing.assert_array_equal(array[size:], 7)


@WIDTH
def test_targets_may_be_the_gradients_themselves(width):
    given, y = arrays(2, 5000), normal(5000, seed=9)
    wanted = expected(given, y)

    run = AddReluScatter(Rows.all_of(5000), 2, 2, Tuning(width=width), relu=True, total=False)
    run(given, given[::-1], y)

    for array in given:
        np.testing.assert_array_equal(array, wanted)


@WIDTH
@pytest.mark.parametrize("length", [5, 48])
def test_rows_may_be_parts_of_those_that_are_read(length, width):
    given = arrays(2, 6 * 100)
    target, total = np.empty((6, length), np.float32), np.zeros((6, 100), np.float32)
    rows = Rows(rows=6, length=length, first=20, stride=100, target_stride=length)

    run = AddReluScatter(rows, 2, 1, Tuning(width=width), relu=False, total=True)
    run(given, [target.reshape(-1)], None, total.reshape(-1))

    wanted = expected(given, None).reshape(6, 100)
    np.testing.assert_array_equal(target, wanted[:, 20 : 20 + length])
    np.testing.assert_array_equal(total[:, 20 : 20 + length], target)
    assert not total[:, :20].any()
    assert not total[:, 20 + length :].any()


@WIDTH
def test_what_a_rectifier_stopped_is_zero_whatever_its_gradient(width):
    given, y = arrays(2, 64), np.zeros(64, np.float32)
    given[0][5], y[6] = np.nan, np.nan
    target = np.empty(64, np.float32)

    run = AddReluScatter(Rows.all_of(64), 2, 1, Tuning(width=width), relu=True, total=False)
    run(given, [target], y)

    np.testing.assert_array_equal(target, 0)


def test_code_names_the_instructions():
    run = AddReluScatter(Rows.all_of(8), 2, 1, Tuning(width=16), relu=False, total=False)

    assert run.code == "handed on llvm:avx512"
