"""Rows that hold NaN or infinity, on arrays."""

import numpy as np
import pytest
from stages import WIDTH, normal

from demitasse.backends.kernels import softmax
from demitasse.backends.kernels.softmax import NanRows
from demitasse.backends.kernels.tuning import Tuning

THREADS = pytest.mark.parametrize("threads", [1, 3])
LENGTHS = pytest.mark.parametrize("length", [1, 2, 7, 16, 21, 48, 1000])


@pytest.fixture(autouse=True)
def few_each(monkeypatch):
    """Let threads divide few rows too."""
    monkeypatch.setattr(softmax, "FEWEST_NAN_EACH", 1)


def marked(x, width, threads):
    y = np.ones_like(x)
    NanRows(*x.shape, Tuning(width=width, threads=threads))(x.reshape(-1), y.reshape(-1))
    return y


@WIDTH
@THREADS
@LENGTHS
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_rows_with_nan_or_infinity_become_nan_wherever_it_stands(value, length, threads, width):
    x = normal(length + 2, length)
    for row in range(length):
        x[row, row] = value

    y = marked(x, width, threads)

    assert np.isnan(y[:length]).all()
    assert (y[length:] == 1).all()


@WIDTH
@LENGTHS
def test_other_rows_stay_and_those_with_minus_infinity(length, width):
    x = np.clip(normal(5, length), -1, 1) * np.finfo(np.float32).max
    x[1], x[2, -1], x[3] = -np.inf, -np.inf, 0.0

    assert (marked(x, width, 1) == 1).all()
