"""Copies between layouts, against element-by-element copies."""

import numpy as np
import pytest
from stages import WIDTH, normal

from demitasse.backends.cpu.copies import LayoutCopy
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.kernels.strided_copy import MOST_LOOPS, StridedCopy, join_loops
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined


def plain(*shape):
    return strided(shape, range(len(shape)))


def strided(shape, order):
    """Axes in this order, the last one innermost."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * shape[axis]
    return Layout(tuple(shape), tuple(strides))


def blocked(shape, axis, block):
    padded = list(shape)
    padded[axis] = -(-shape[axis] // block) * block
    counts = [n // block if a == axis else n for a, n in enumerate(padded)]
    strides = [block * int(np.prod(counts[a + 1 :])) for a in range(len(shape))]
    return Layout(tuple(shape), tuple(strides), axis, block)


def place(side, index):
    """Where an element is."""
    at = side.first
    for axis, i in enumerate(index):
        block = side.block_of(axis)
        at += i // block * side.strides[axis] + i % block
    return at


LAST = (0, 2, 3, 1)
CASES = {
    "one row": (plain(700), plain(700)),
    "one element": (plain(1, 1), plain(1, 1)),
    "to channels last": (plain(2, 5, 3, 4), strided((2, 5, 3, 4), LAST)),
    "from channels last": (strided((3, 20, 5, 4), LAST), plain(3, 20, 5, 4)),
    "many to channels last": (plain(2, 37, 7, 9), strided((2, 37, 7, 9), LAST)),
    "many from channels last": (strided((2, 37, 7, 9), LAST), plain(2, 37, 7, 9)),
    "three channels of many pixels": (plain(2, 3, 8, 9), strided((2, 3, 8, 9), LAST)),
    "three channels apart": (strided((2, 3, 8, 9), LAST), plain(2, 3, 8, 9)),
    "two rows of columns": (plain(6, 2, 29), strided((6, 2, 29), (0, 2, 1))),
    "two rows apart": (strided((6, 2, 29), (0, 2, 1)), plain(6, 2, 29)),
    "eight rows joined": (plain(8, 40), strided((8, 40), (1, 0))),
    "seven rows apart": (strided((7, 40), (1, 0)), plain(7, 40)),
    "one image": (strided((1, 37, 5, 9), LAST), plain(1, 37, 5, 9)),
    "to blocks": (plain(2, 32, 3, 5), blocked((2, 32, 3, 5), 1, 16)),
    "to padded blocks": (plain(2, 21, 3, 5), blocked((2, 21, 3, 5), 1, 8)),
    "from padded blocks": (blocked((2, 3, 3, 5), 1, 16), plain(2, 3, 3, 5)),
    "three channels to padded blocks": (plain(2, 3, 5, 9), blocked((2, 3, 5, 9), 1, 8)),
    "three channels from padded blocks": (blocked((2, 3, 5, 9), 1, 8), plain(2, 3, 5, 9)),
    "two channels to blocks of four": (plain(2, 2, 5, 9), blocked((2, 2, 5, 9), 1, 4)),
    "two channels from blocks of four": (blocked((2, 2, 5, 9), 1, 4), plain(2, 2, 5, 9)),
    "few pixels to padded blocks": (plain(2, 7, 1, 3), blocked((2, 7, 1, 3), 1, 8)),
    "a block and three channels": (plain(2, 11, 5, 9), blocked((2, 11, 5, 9), 1, 8)),
    "a block and three channels apart": (blocked((2, 11, 5, 9), 1, 8), plain(2, 11, 5, 9)),
    "blocks of rows to blocks of columns": (blocked((20, 3), 0, 8), blocked((20, 3), 1, 8)),
    "between blocks": (blocked((1, 27, 4, 3), 1, 16), blocked((1, 27, 4, 3), 1, 8)),
    "to larger blocks": (blocked((1, 27, 4, 3), 1, 4), blocked((1, 27, 4, 3), 1, 16)),
    "between blocks that do not divide each other": (
        blocked((207, 5), 0, 24),
        blocked((207, 5), 0, 32),
    ),
    "few between such blocks": (blocked((50, 7), 0, 24), blocked((50, 7), 0, 16)),
    "blocks of rows": (plain(50, 7), blocked((50, 7), 0, 24)),
    "five axes": (plain(2, 3, 4, 5, 6), strided((2, 3, 4, 5, 6), (4, 2, 0, 3, 1))),
    "a part": (
        strided((2, 8, 3, 4), LAST).part((2, 3, 3, 4), (0, 5, 0, 0)),
        plain(2, 3, 3, 4),
    ),
}


@WIDTH
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_every_element_is_where_it_belongs_and_padding_is_zero(case, threads, width):
    here, there = CASES[case]
    source = normal(here.first + here.size + 100)
    target = np.full(there.first + there.size, 77.0, np.float32)
    want = np.where(np.arange(target.size) >= there.first, 0.0, 77.0).astype(np.float32)
    for index in np.ndindex(*here.shape):
        want[place(there, index)] = source[place(here, index)]

    LayoutCopy(here, there, Tuning(width, threads))(source, target)

    np.testing.assert_array_equal(target, want)


@WIDTH
def test_many_elements_are_copied_by_many_threads(width):
    x = normal(3, 70, 400)
    target = np.zeros(x.size, np.float32)

    StridedCopy([(3, 28000, 28000), (70, 400, 1), (400, 1, 70)], Tuning(width, 3))(
        x.reshape(-1), target
    )

    np.testing.assert_array_equal(target.reshape(3, 400, 70), x.transpose(0, 2, 1))


@WIDTH
@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize(
    "shape", [(1, 8, 101, 103), (3, 8, 61, 67), (1, 21, 73, 79), (2, 3, 99, 157), (1, 5, 1, 9999)],
    ids=str,
)  # fmt: skip
def test_threads_divide_a_loop_of_many_turns(shape, threads, width):
    layouts = [plain(*shape), strided(shape, LAST), blocked(shape, 1, 8)]
    x = normal(*shape)

    for there in layouts:
        first, target, back = (np.full(there.size, 77.0, np.float32) for _ in range(3))
        LayoutCopy(layouts[0], there, Tuning(width))(x, first)
        LayoutCopy(layouts[0], there, Tuning(width, threads))(x, target)
        LayoutCopy(there, layouts[0], Tuning(width, threads))(target, back)

        np.testing.assert_array_equal(target, first)
        np.testing.assert_array_equal(back[: x.size], x.reshape(-1))


@WIDTH
@pytest.mark.parametrize("rows", [2, 3, 5])
def test_few_rows_are_joined_and_parted_by_many_threads(rows, width):
    x = normal(rows, 30000)
    joined, back = (np.zeros(x.size, np.float32) for _ in range(2))

    StridedCopy([(rows, 30000, 1), (30000, 1, rows)], Tuning(width, 3))(x.reshape(-1), joined)
    StridedCopy([(rows, 1, 30000), (30000, rows, 1)], Tuning(width, 3))(joined, back)

    np.testing.assert_array_equal(joined.reshape(30000, rows), x.T)
    np.testing.assert_array_equal(back.reshape(rows, 30000), x)


def test_loops_that_continue_each_other_are_one():
    assert join_loops([(5, 1, 1), (1, 9, 9), (4, 5, 5)]) == [(20, 1, 1)]
    assert join_loops([(1, 7, 7)]) == [(1, 0, 0)]


def test_more_axes_than_there_are_loops_are_declined():
    shape = (2,) * (MOST_LOOPS + 1)

    with pytest.raises(Declined):
        LayoutCopy(plain(*shape), strided(shape, range(MOST_LOOPS, -1, -1)), Tuning(8))
