"""Kernels of the products at the positions, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, called

from demitasse.backends.kernels.language.values import FLOAT
from demitasse.backends.kernels.winograd.convolution import product_kernel, register_rows


def multiplied(kernel, width, vectors, rows, again):
    """Return what a kernel writes for random numbers, and the products, above another row."""
    rng, columns = np.random.default_rng(0), width * vectors
    a = rng.normal(size=(rows, 11)).astype(np.float32)
    b = rng.normal(size=(11, columns)).astype(np.float32)
    c = rng.normal(size=(rows + 1, columns)).astype(np.float32)
    want = np.concatenate([a @ b + again * c[:-1], c[-1:]])

    called(
        kernel, a, 11 * FLOAT, FLOAT, b, columns * FLOAT, c, columns * FLOAT, rows, 11, int(again)
    )
    return c, want


@pytest.mark.parametrize(("adds", "again"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("vectors", [1, 2, 3])
@WIDTH
def test_products_of_any_number_of_rows(adds, again, vectors, width):
    for rows in range(1, 32):
        kernel = product_kernel(width, vectors, [rows], adds=adds)
        found, want = multiplied(kernel, width, vectors, rows, again)

        np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("adds", [False, True])
@WIDTH
def test_rows_that_two_tiles_compute_are_added_once(adds, width):
    kernel = product_kernel(width, 2, [5], adds=adds)
    for rows in range(5, 21):
        found, want = multiplied(kernel, width, 2, rows, again=adds)

        np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-6)


@WIDTH
def test_a_product_of_a_transposed_matrix(width):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(9, n)).astype(np.float32) for n in (5, width))
    c = np.zeros((5, width), np.float32)

    kernel = product_kernel(width, 1, [5], adds=True)
    called(kernel, a, FLOAT, 5 * FLOAT, b, width * FLOAT, c, width * FLOAT, 5, 9, 0)

    np.testing.assert_allclose(c, a.T @ b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("counts", "most", "rows"),
    [([56], 14, 14), ([16], 14, 8), ([16], 9, 8), ([49], 14, 7), ([85], 9, 5), ([3, 40], 9, 3)],
)
def test_register_tiles_compute_few_rows_twice(counts, most, rows):
    assert register_rows(counts, most) == rows
