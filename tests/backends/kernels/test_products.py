"""Panels of columns, and the kernels that they need."""

import numpy as np
import pytest
from stages import WIDTH

from demitasse.backends.kernels import products as registers
from demitasse.backends.kernels.products import split_columns


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
