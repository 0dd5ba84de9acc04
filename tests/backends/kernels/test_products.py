"""Panels of columns."""

import pytest
from stages import WIDTH

from demitasse.backends.kernels.products import split_columns


@WIDTH
@pytest.mark.parametrize("columns", [1, 8, 9, 24, 25, 32, 50, 64, 100])
def test_panels_cover_all_columns_once(columns, width):
    found = split_columns(columns, width)

    places = [at + width * n for vectors, at in found for n in range(vectors)]
    assert places == list(range(0, columns, width))
    assert all(1 <= vectors <= 3 for vectors, _ in found)
