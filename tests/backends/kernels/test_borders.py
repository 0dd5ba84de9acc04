"""Rows with zeros around them."""

import numpy as np
import pytest
from stages import WIDTH, called, exported

from demitasse.backends.kernels.language.values import FLOAT
from demitasse.backends.kernels.windows import Padded, bordered


def write(k):
    y, height, breadth, left, columns, target = k.arguments
    padded = Padded(height, breadth, left, columns)
    begin, end = bordered(k, y, padded, target, k.number(0.0), FLOAT)
    with k.loop(end, begin) as column:
        k.store(k.number(1.0), target + column.i * FLOAT)


@WIDTH
@pytest.mark.parametrize(
    ("y", "want"), [(-1, "000000"), (0, "001110"), (3, "001110"), (4, "000000")]
)
def test_rows_that_are_not_there_are_zeros(y, want, width):
    row = np.full(7, 9, np.float32)

    called(exported(f"bordered{width}", width, write, 6), y, 4, 3, 2, 6, row)

    assert "".join(str(int(one)) for one in row) == want + "9"


def test_an_image_may_reach_over_what_is_wanted():
    row = np.full(5, 9, np.float32)

    called(exported("bordered8", 8, write, 6), 0, 1, 8, 1, 4, row)

    assert row.tolist() == [0, 1, 1, 1, 9]
