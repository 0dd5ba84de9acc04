"""Softmax over few classes of many rows, on arrays, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, normal

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.softmax import MOST, SmallAxisSoftmax, takes
from demitasse.backends.kernels.tuning import Tuning


def softmax(x, width, threads=1):
    """Return that of rows, and hold that nothing around the result is touched."""
    source, target = aligned(x.size), aligned(x.size + 2)
    source[:], target[:] = x.reshape(-1), 77.0

    SmallAxisSoftmax(*x.shape, Tuning(width, threads))(source, target[1:-1])

    assert (target[0], target[-1]) == (77, 77)
    return target[1:-1].reshape(x.shape).copy()


def expected(x):
    wide = x.astype(float)
    clamp_min = np.exp(wide - wide.max(axis=1, keepdims=True))
    return clamp_min / clamp_min.sum(axis=1, keepdims=True)


@WIDTH
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(16, 1), (17, 2), (1000, 21), (4421, 2), (50, MOST)], ids=str)
def test_every_row_adds_up_to_1(shape, threads, width):
    x = normal(*shape) * 5

    got = softmax(x, width, threads)

    np.testing.assert_allclose(got, expected(x), rtol=2e-6)


@WIDTH
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(1, 2, 16), (3, 21, 50), (2, 5, 4421)], ids=str)
def test_every_pixel_adds_up_to_1(shape, threads, width):
    images, length, rows = shape
    x = normal(*shape)
    x[-1, 0, 9] = np.nan
    source, target = aligned(x.size), aligned(x.size + 2)
    source[:], target[:] = x.reshape(-1), 77.0

    SmallAxisSoftmax(rows, length, Tuning(width, threads), images)(source, target[1:-1])

    assert (target[0], target[-1]) == (77, 77)
    want = expected(x.transpose(0, 2, 1).reshape(-1, length)).reshape(images, rows, length)
    got = target[1:-1].reshape(shape).transpose(0, 2, 1)
    np.testing.assert_allclose(got, want, rtol=2e-6)
    assert np.isnan(got).sum() == length


@WIDTH
def test_large_and_small_numbers_do_not_overflow(width):
    x = normal(20, 3)
    x[3], x[4], x[19] = (1e30, 0, -1e30), (-1e38, -1e38, -np.inf), (90, 90, 90)

    np.testing.assert_allclose(softmax(x, width), expected(x), rtol=2e-6, atol=1e-30)


@WIDTH
def test_rows_of_nan_and_infinity_are_nan(width):
    x = normal(40, 3)
    x[5, 2], x[20, 0], x[39, 1], x[7] = np.nan, np.inf, np.nan, -np.inf

    lost = np.isnan(softmax(x, width))

    assert lost.any(axis=1).nonzero()[0].tolist() == [5, 7, 20, 39]
    assert lost.sum() == 12


def test_few_rows_and_long_ones_are_refused():
    assert not takes(7, 2, 8)
    with pytest.raises(ValueError, match="give 8 or more"):
        SmallAxisSoftmax(8, MOST + 1, Tuning(8))
