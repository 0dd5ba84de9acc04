"""The operators of a kernel's values."""

import math

import numpy as np
import pytest
from stages import WIDE, WIDTH, called, exported, normal

from demitasse.backends.kernels.language.values import (
    FLOAT,
    choose,
    chunk,
    clamp_max,
    clamp_min,
    exp2_int,
    fma,
    horizontal_sum,
    horizontal_sums,
    maximum,
    minimum,
    permuted,
    root,
    rounded,
)


def test_integers_are_computed_as_in_python():
    def results(a, b, k):
        first, last = chunk(a, k.word(1), b)
        return [
            a + b, a - b, 100 - a, -b + 50, a * b, 3 * a, a // b, a % b, minimum(a, b),
            minimum(5, a), maximum(a, b), maximum(a, 90), choose(a < b, 1, 0),
            choose((a > b) & (b >= 8), a, 2), choose(a <= 43, 1, 0), first, last,
        ]  # fmt: skip

    def write(k):
        target, a, b = k.arguments
        for place, result in enumerate(results(a, b, k)):
            with k.loop(result) as loop:  # the last turn's number tells the integer
                k.store(table(k, loop.i), target + place * FLOAT)

    def table(k, number):
        return k.load_float(k.arguments[0] + (32 + number) * FLOAT)

    target = np.concatenate([np.zeros(32), np.arange(1, 501)]).astype(np.float32)

    called(exported("words", 8, write, 3), target, 43, 8)

    want = [51, 35, 57, 42, 344, 129, 5, 3, 8, 5, 43, 90, 0, 43, 1, 5, 10]
    assert target[: len(want)].tolist() == want


@WIDTH
def test_vectors_are_computed_as_in_numpy(width):
    def write(k):
        target, one, two = k.arguments
        a, b = k.load(one), k.load(two)
        for place, result in enumerate(
            (a + b, a - b, a * b, a / b, -a, fma(a, b, a), clamp_min(a, b), root(a * a))
        ):
            k.store(result, target + place * k.vector_bytes)

    target, a, b = np.zeros((8, width), np.float32), normal(width), normal(width, seed=1)

    called(exported(f"vectors{width}", width, write, 3), target, a, b)

    want = [a + b, a - b, a * b, a / b, -a, a * b + a, np.maximum(a, b), np.abs(a)]
    np.testing.assert_allclose(target, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "want"),
    [(clamp_min, [0, 2, 0, 0, 5, 0, math.inf]), (clamp_max, [-1, 0, -math.inf, 0, 0, -3, 0])],
    ids=["clamp_min", "clamp_max"],
)
def test_what_is_no_number_is_neither_raised_nor_lowered(function, want):
    def write(k):
        at, limit = k.arguments
        k.store(function(k.load(at), k.broadcast(limit)), at)

    array = np.array([np.nan, -1, 2, -np.inf, 0, 5, -3, np.inf], np.float32)

    called(exported(function.__name__, 8, write, 2), array, np.zeros(1, np.float32))

    assert math.isnan(array[0])
    assert array[1:].tolist() == want


def test_whole_numbers_and_powers_of_two():
    def write(k):
        at, target = k.arguments
        whole = rounded(k.load(at))
        k.store(whole, target)
        k.store(exp2_int(whole), target + k.vector_bytes)

    numbers = np.array([0.4, 0.6, -0.6, -126.3, 126.8, 12.5, -3.2, 0], np.float32)
    target = np.zeros((2, 8), np.float32)

    called(exported("powers", 8, write, 2), numbers, target)

    np.testing.assert_array_equal(target[0], np.round(numbers))
    np.testing.assert_array_equal(target[1], np.ldexp(np.float32(1), np.round(numbers).astype(int)))


@WIDTH
@pytest.mark.parametrize("rare", [False, True])
def test_some_elements_of_a_vector_are_read_and_written(width, rare):
    def write(k):
        source, target, count = k.arguments
        some = k.lane_mask(count, rare=rare)
        k.store(k.load(source, some), target, some)
        k.store(k.load(source, some), target + k.vector_bytes)

    run = exported(f"some{width}{rare}", width, write, 3)
    for count in range(-1, width + 2):
        expect_first(run, width, count, count)


@WIDTH
def test_a_known_number_of_elements_is_read_and_written(width):
    for count in range(-1, width + 2):

        def write(k, count=count):
            source, target = k.arguments
            some = k.lane_mask(count)
            k.store(k.load(source, some), target, some)
            k.store(k.load(source, some), target + k.vector_bytes)

        expect_first(exported(f"known{width}_{count}", width, write, 2), width, count)


def expect_first(run, width, count, *arguments):
    """Expect that ``run`` reads and writes a vector's first elements."""
    source, target = normal(width), np.full((2, width), 7, np.float32)
    first = np.arange(width) < count

    called(run, source, target, *arguments)

    np.testing.assert_array_equal(target[0], np.where(first, source, 7))
    np.testing.assert_array_equal(target[1], np.where(first, source, 0))


@WIDE
@pytest.mark.parametrize("count", [1, 5, "all"])
def test_elements_of_several_vectors_are_added_up_as_those_of_one(count, width):
    count = width if count == "all" else count

    def write(k):
        target, source = k.arguments
        rows = [k.load(source + row * k.vector_bytes) for row in range(count)]
        k.store(horizontal_sums(rows), target)
        for place, row in enumerate(rows):
            k.store(horizontal_sum(row), target + (place + 1) * k.vector_bytes)

    target, source = np.full((count + 1, width), np.nan, np.float32), normal(count, width)

    called(exported(f"sums_of_lanes{count}_{width}", width, write, 2), target, source)

    together, alone = target[0], target[1:, 0]
    np.testing.assert_array_equal(together[:count], alone)
    assert not together[count:].any()
    np.testing.assert_allclose(alone, source.sum(axis=1), rtol=1e-5, atol=1e-5)


@WIDTH
def test_elements_of_a_vector_are_brought_into_another_order(width):
    order = [(3 * lane + 1) % width // 2 for lane in range(width)]

    def write(k):
        target, source = k.arguments
        k.store(permuted(k.load(source), order), target)

    target, source = np.zeros(width, np.float32), normal(width)

    called(exported(f"permuted{width}", width, write, 2), target, source)

    np.testing.assert_array_equal(target, source[order])
