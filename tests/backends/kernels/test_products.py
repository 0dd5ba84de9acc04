"""Products of matrices against numpy."""

import numpy as np
import pytest
from stages import WIDTH, called

from demitasse.backends.kernels.language.words import FLOAT
from demitasse.backends.kernels.products import registers
from demitasse.backends.kernels.products.matrix import matrix_products
from demitasse.backends.kernels.products.panels import split_columns


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("vectors", [1, 2, 3])
@WIDTH
@pytest.mark.parametrize("packed", [False, True])
def test_products_of_any_number_of_rows(packed, width, vectors, adds):
    rng, columns = np.random.default_rng(0), width * vectors
    for rows in range(1, 32):
        a = rng.normal(size=(rows, 11)).astype(np.float32)
        b = rng.normal(size=(11, columns)).astype(np.float32)
        c = rng.normal(size=(rows + 1, columns)).astype(np.float32)
        want = a @ b + adds * c[:-1]
        behind = c[-1].copy()

        called(
            matrix_products(width, packed=packed)(vectors),
            a, 11 * FLOAT, FLOAT, b, columns * FLOAT,
            c, columns * FLOAT, rows, 11, int(adds),
        )  # fmt: skip

        np.testing.assert_allclose(c[:-1], want, rtol=2e-5, atol=2e-6)
        assert np.array_equal(c[-1], behind)


@WIDTH
def test_a_product_of_a_transposed_matrix(width):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(9, n)).astype(np.float32) for n in (5, width))
    c = np.zeros((5, width), np.float32)

    called(
        matrix_products(width)(1), a, FLOAT, 5 * FLOAT, b, width * FLOAT,
        c, width * FLOAT, 5, 9, 0,
    )  # fmt: skip

    np.testing.assert_allclose(c, a.T @ b, rtol=2e-5, atol=2e-6)


@WIDTH
@pytest.mark.parametrize("columns", [1, 8, 9, 24, 25, 32, 50, 64, 100])
def test_panels_cover_all_columns_once(columns, width):
    found = split_columns(columns, width)

    places = [at + width * n for vectors, at in found for n in range(vectors)]
    assert places == list(range(0, columns, width))
    assert all(1 <= vectors <= 3 for vectors, _ in found)


def test_only_kernels_that_are_asked_for_are_compiled(monkeypatch):
    names = []

    def compiled(name, write, *exports):
        names.append(name)
        return dict.fromkeys(exports, 1)

    monkeypatch.setattr(registers, "compiled", compiled)
    kernels = registers.by_panel("some", 16, 10, lambda k, vectors: None)

    kernels(2)

    assert names == ["some_2x16"]
