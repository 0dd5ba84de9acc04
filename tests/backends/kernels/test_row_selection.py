"""Selection of rows of a table, and sums of rows, on arrays, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, normal

from demitasse.backends.kernels.row_selection import RowSelection, RowSums
from demitasse.backends.kernels.tuning import Tuning

ROWS = 9

SIZES = pytest.mark.parametrize("columns", [1, 7, 16, 45, 130])
THREADS = pytest.mark.parametrize("threads", [1, 3])
NONE = pytest.mark.parametrize("index", [-1, -1e30, ROWS, 1e30, np.inf, -np.inf, np.nan])


def indices(count=300):
    """Indices with fractions, which are cut off."""
    return np.random.default_rng(0).uniform(-0.9, ROWS, count).astype(np.float32)


def selected(asked, table, bias, tuning):
    """The selected rows, and whether an index has no row."""
    (rows, columns), outside = table.shape, np.zeros(1, np.int64)
    y = np.full(len(asked) * columns + 1, 77.0, np.float32)
    kernel = RowSelection(len(asked), rows, columns, tuning, biased=bias is not None)

    kernel(asked, table, table if bias is None else bias, y, outside)

    assert y[-1] == 77
    return y[:-1].reshape(-1, columns), outside[0]


@WIDTH
@THREADS
@SIZES
@pytest.mark.parametrize("biased", [True, False])
def test_rows_are_selected(columns, biased, threads, width):
    table, bias, asked = normal(ROWS, columns), normal(columns, seed=1), indices()

    found, outside = selected(asked, table, bias if biased else None, Tuning(width, threads))

    want = table[asked.astype(int)] + (bias if biased else np.float32(0))
    np.testing.assert_array_equal(found, want)
    assert outside == 0


@WIDTH
@NONE
def test_an_index_without_a_row_is_told(index, width):
    asked = indices()
    asked[17] = index

    found, outside = selected(asked, normal(ROWS, 20), None, Tuning(width))

    assert outside == 1
    np.testing.assert_array_equal(found[16], normal(ROWS, 20)[int(asked[16])])


def sums(asked, dy, tuning):
    """The sums of rows of each index."""
    columns = dy.shape[1]
    total = np.full(ROWS * columns + 1, 77.0, np.float32)

    RowSums(len(asked), ROWS, columns, tuning)(asked, dy, total)

    assert total[-1] == 77
    return total[:-1].reshape(ROWS, columns)


@WIDTH
@THREADS
@SIZES
def test_rows_of_an_index_are_added_in_their_order(columns, threads, width):
    asked, dy, want = indices(), normal(300, columns), np.zeros((ROWS, columns), np.float32)
    np.add.at(want, asked.astype(int), dy)

    found = sums(asked, dy, Tuning(width, threads))

    np.testing.assert_array_equal(found, want)


@WIDTH
@NONE
def test_rows_of_no_index_are_left_out(index, width):
    asked, dy = indices(), normal(300, 20)
    asked[17] = index
    if np.isnan(index):  # 0 is the row of NaN
        dy[17] = 0

    found = sums(asked, dy, Tuning(width))

    np.testing.assert_array_equal(
        found, sums(np.delete(asked, 17), np.delete(dy, 17, 0), Tuning(width))
    )
