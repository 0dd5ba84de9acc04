"""Maxima of the bins of regions and their gradients, on arrays, against loops in numpy."""

import numpy as np
import pytest
from bins import some_bins
from stages import WIDTH, in_memory, normal

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.roi_pooling import RegionMaxima, RegionMaximaGradient
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.regions import Bins

THREADS = pytest.mark.parametrize("threads", [1, 3])


def maxima(x, bins):
    """Return the largest value of each channel in each bin; 0 in an empty one."""
    items, rows, columns = bins
    y = np.zeros((len(items), x.shape[1], rows.shape[1], columns.shape[1]), np.float32)
    for r, i, j in np.ndindex(len(items), rows.shape[1], columns.shape[1]):
        seen = x[items[r], :, slice(*rows[r, i]), slice(*columns[r, j])]
        if seen.size:
            y[r, :, i, j] = seen.max(axis=(1, 2))
    return y


def check(x, bins, tuning):
    """Hold results against numpy's, bit for bit, and what lies behind them against what it was."""
    want, images = maxima(x, bins), Images.channels_last(x.shape)
    got = np.full(want.size + 1, 77.0, np.float32)
    kernel = RegionMaxima(images, want.shape[0], want.shape[2:], tuning)

    kernel.run(bins, in_memory(x, images), got)

    want = want.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(got[:-1].reshape(want.shape), want)
    assert got[-1] == 77


def gradient(x, bins, dy):
    """Return the gradient of the maxima, which goes to the first of the largest values."""
    items, rows, columns = bins
    dx = np.zeros_like(x)
    for r, c, i, j in np.ndindex(dy.shape):
        (top, bottom), (left, right) = rows[r, i], columns[r, j]
        seen = x[items[r], c, top:bottom, left:right]
        if seen.size:
            row, column = np.unravel_index(seen.argmax(), seen.shape)
            dx[items[r], c, top + row, left + column] += dy[r, c, i, j]
    return dx


def check_gradient(x, bins, tuning):
    """Hold gradients against numpy's, and what lies behind them against what it was."""
    images = Images.channels_last(x.shape)
    regions, pooled = len(bins.items), (bins.rows.shape[1], bins.columns.shape[1])
    dy = normal(regions, x.shape[1], *pooled, seed=2)
    got = np.full(x.size + 1, 77.0, np.float32)
    kernel = RegionMaximaGradient(images, regions, pooled, tuning)

    kernel.run(bins, in_memory(x, images), np.ascontiguousarray(dy.transpose(0, 2, 3, 1)), got)

    want = gradient(x, bins, dy).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(got[:-1].reshape(want.shape), want)
    assert got[-1] == 77


@WIDTH
@THREADS
@pytest.mark.parametrize("channels", [1, 7, 16, 37, 130])
@pytest.mark.parametrize("pooled", [(1, 1), (2, 3), (7, 7)])
def test_gradients_go_to_the_largest_value(pooled, channels, threads, width):
    x = normal(3, channels, 6, 9)

    check_gradient(x, some_bins(x.shape, 20, pooled), Tuning(width, threads))


@WIDTH
def test_gradients_go_to_the_first_of_equal_values_and_of_nan(width):
    x = np.round(normal(2, 20, 5, 4))
    x[0, 3, 1, 1] = x[0, 3, 2, 2] = x[1, 5] = np.nan
    x[0, 6], x[1, 7, 2, 1] = -np.inf, np.inf

    check_gradient(x, some_bins(x.shape, 30, (2, 2)), Tuning(width))


@WIDTH
@THREADS
@pytest.mark.parametrize("channels", [1, 7, 16, 37])
@pytest.mark.parametrize("pooled", [(1, 1), (2, 3), (7, 7)])
def test_channels_lie_side_by_side(pooled, channels, threads, width):
    x = normal(3, channels, 6, 9)

    check(x, some_bins(x.shape, 20, pooled), Tuning(width, threads))


@WIDTH
def test_nan_stays_and_infinity_is_a_number(width):
    x = normal(1, 20, 4, 4)
    x[0, 3, 0, 0] = x[0, 4, 3, 3] = np.nan
    x[0, 5], x[0, 6, 1, 2] = -np.inf, np.inf
    whole = np.array([[[0, 4]]])

    check(x, Bins(np.zeros(1, np.int64), whole, whole), Tuning(width))


def test_what_it_does_not_take_is_refused():
    images = Images.in_order((1, 24, 3, 3))

    with pytest.raises(ValueError, match="side by side"):
        RegionMaxima(images, 1, (2, 2), Tuning(8))
    with pytest.raises(ValueError, match="side by side"):
        RegionMaximaGradient(images, 1, (2, 2), Tuning(8))
