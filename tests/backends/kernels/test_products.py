"""Products of matrices against numpy."""

import numpy as np
import pytest
from stages import WIDTH, called

from demitasse.backends.kernels import products as registers
from demitasse.backends.kernels.language.values import FLOAT
from demitasse.backends.kernels.products import matrix_products, split_columns


def multiplied(product, width, vectors, rows, adds):
    """What a kernel makes of some numbers, and what is right; a row behind stays as it is."""
    rng, columns = np.random.default_rng(0), width * vectors
    a = rng.normal(size=(rows, 11)).astype(np.float32)
    b = rng.normal(size=(11, columns)).astype(np.float32)
    c = rng.normal(size=(rows + 1, columns)).astype(np.float32)
    want = np.concatenate([a @ b + adds * c[:-1], c[-1:]])

    called(
        product.address, a, 11 * FLOAT, FLOAT, b, columns * FLOAT,
        c, columns * FLOAT, rows, 11, int(adds), product.entry[1],
    )  # fmt: skip
    return c, want


@pytest.mark.parametrize(("packed", "adds"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("vectors", [1, 2, 3])
@WIDTH
def test_products_of_any_number_of_rows(packed, width, vectors, adds):
    products = matrix_products(width, packed=packed)
    for rows in range(1, 32):
        found, want = multiplied(products(vectors, {rows}), width, vectors, rows, adds)

        np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("vectors", [1, 2, 3])
@WIDTH
def test_rests_that_no_kernel_was_prepared_for_give_the_same_bits(width, vectors, monkeypatch):
    remainders = np.zeros(16, np.int64)
    monkeypatch.setattr(registers, "_remainders", lambda name: remainders)
    products = matrix_products(width, packed=True)
    unprepared = products(vectors, {64 * registers.ROWS[width][vectors]})
    for rows in range(1, 32):
        prepared = products(vectors, {rows, rows + 64 * registers.ROWS[width][vectors]})
        found, _ = multiplied(prepared, width, vectors, rows, adds=False)
        remainders[:] = 0

        slowly, _ = multiplied(unprepared, width, vectors, rows, adds=False)

        assert np.array_equal(found, slowly)


@WIDTH
def test_a_product_of_a_transposed_matrix(width):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(9, n)).astype(np.float32) for n in (5, width))
    c = np.zeros((5, width), np.float32)

    product = matrix_products(width)(1, {5})
    called(
        product.address, a, FLOAT, 5 * FLOAT, b, width * FLOAT,
        c, width * FLOAT, 5, 9, 0, product.entry[1],
    )  # fmt: skip

    np.testing.assert_allclose(c, a.T @ b, rtol=2e-5, atol=2e-6)


@WIDTH
@pytest.mark.parametrize("columns", [1, 8, 9, 24, 25, 32, 50, 64, 100])
def test_panels_cover_all_columns_once(columns, width):
    found = split_columns(columns, width)

    places = [at + width * n for vectors, at in found for n in range(vectors)]
    assert places == list(range(0, columns, width))
    assert all(1 <= vectors <= 3 for vectors, _ in found)


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ({28}, ["some_2x16"]),
        ({15}, ["some_2x16"]),
        ({3}, ["some_2x16of3"]),
        ({3, 19, 33}, ["some_2x16", "some_2x16of3", "some_2x16of5"]),
    ],
)
def test_only_kernels_that_are_asked_for_are_compiled(counts, wanted, monkeypatch):
    names = []

    def compiled(name, write, *exports):
        names.append(name)
        return dict.fromkeys(exports, 1)

    monkeypatch.setattr(registers, "compiled", compiled)
    monkeypatch.setattr(registers, "_remainders", lambda name: np.zeros(16, np.int64))
    kernels = registers.by_panel("some", 16, 11, lambda k, vectors, few: None)

    kernels(2, counts)

    assert sorted(names) == wanted
