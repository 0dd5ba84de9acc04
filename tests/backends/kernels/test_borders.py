"""Rows with zeros around them."""

from types import SimpleNamespace

import numpy as np
import pytest
from stages import WIDTH, called, exported

from demitasse.backends.kernels.winograd.transforms import zero_border


def write(k):
    y, rows, breadth, left, columns, target = k.arguments
    images = SimpleNamespace(rows=rows, columns=breadth, left=left)
    begin, end = zero_border(k, y, images, columns, target)
    with k.loop(end, begin) as column:
        k.store(k.constant(1.0), target + column.i * k.vector_bytes)


@WIDTH
@pytest.mark.parametrize(
    ("y", "want"), [(-1, "000000"), (0, "001110"), (3, "001110"), (4, "000000")]
)
def test_rows_that_are_not_there_are_zeros(y, want, width):
    row = np.full((7, width), 9, np.float32)

    called(exported(f"bordered{width}", width, write, 6), y, 4, 3, 2, 6, row)

    assert "".join(str(int(one)) for one in row[:, 0]) == want + "9"
    assert (row == row[:, :1]).all()


def test_an_image_may_reach_over_what_is_wanted():
    row = np.full((5, 8), 9, np.float32)

    called(exported("bordered8", 8, write, 6), 0, 1, 8, 1, 4, row)

    assert row[:, 0].tolist() == [0, 1, 1, 1, 9]
