"""Panels of columns."""

import pytest
from stages import WIDTH

from demitasse.backends.kernels.products import panel_vectors, split_columns


@WIDTH
@pytest.mark.parametrize("columns", [1, 8, 9, 24, 25, 32, 50, 64, 100])
def test_panels_cover_all_columns_once(columns, width):
    found = split_columns(columns, width)

    places = [at + width * n for vectors, at in found for n in range(vectors)]
    assert places == list(range(0, columns, width))
    assert all(1 <= vectors <= 3 for vectors, _ in found)


@WIDTH
def test_a_panel_has_no_vector_without_columns(width):
    assert all(panel_vectors(n, width) <= -(-n // width) for n in range(1, 400))


def test_panels_compute_few_vectors_in_vain():
    assert [panel_vectors(n, 8) for n in (8, 16, 20, 24, 40)] == [1, 2, 3, 3, 3]
    assert panel_vectors(40, 16) == 2
    assert panel_vectors(40, 16, padded=True) == 1
