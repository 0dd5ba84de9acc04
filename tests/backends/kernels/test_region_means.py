"""Means of the bins of regions and their gradients, on arrays, against loops in numpy."""

import numpy as np
import pytest
from bins import some_bins
from stages import WIDTH, normal

from demitasse.backends.kernels.roi_pooling import RegionMeanGradient, RegionMeans
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.regions import Bins


def means(x, bins):
    """Return the mean of each bin, from channels of its own; 0 of an empty one."""
    items, rows, columns = bins
    shape = rows.shape[1], columns.shape[1]
    parts = x.reshape(len(x), -1, *shape, *x.shape[2:])
    y = np.zeros((len(items), parts.shape[1], *shape))
    for r, i, j in np.ndindex(len(items), *shape):
        seen = parts[items[r], :, i, j, slice(*rows[r, i]), slice(*columns[r, j])]
        if seen.size:
            y[r, :, i, j] = seen.mean(axis=(1, 2), dtype=float)
    return y


def run(x, bins, tuning):
    want = means(x, bins)
    got = np.full(want.size + 1, 77.0, np.float32)

    RegionMeans(x.shape, len(want), want.shape[2:], tuning).run(bins, x, got)

    assert got[-1] == 77
    return got[:-1].reshape(want.shape), want


@WIDTH
@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("pooled", [(1, 1), (2, 3), (7, 7)])
def test_each_bin_has_channels_of_its_own(pooled, outputs, width):
    x = normal(3, outputs * pooled[0] * pooled[1], 6, 19)

    got, want = run(x, some_bins(x.shape, 20, pooled), Tuning(width))

    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def gradient(shape, bins, dy):
    """Return the gradient of the images: each pixel of a bin gets its share."""
    items, rows, columns = bins
    parts = np.zeros((shape[0], *dy.shape[1:], *shape[2:]), np.float32)
    for r, i, j in np.ndindex(len(items), *dy.shape[2:]):
        seen = parts[items[r], :, i, j, slice(*rows[r, i]), slice(*columns[r, j])]
        if seen.size:
            seen += (dy[r, :, i, j] / np.float32(seen[0].size))[:, None, None]
    return parts.reshape(shape)


@WIDTH
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("pooled", [(1, 1), (2, 3), (7, 7)])
def test_each_pixel_of_a_bin_gets_its_share_of_the_gradient(pooled, outputs, threads, width):
    shape = 3, outputs * pooled[0] * pooled[1], 6, 19
    bins, dy = some_bins(shape, 20, pooled), normal(20, outputs, *pooled)
    got = np.full(np.prod(shape) + 1, 77.0, np.float32)

    RegionMeanGradient(shape, 20, pooled, Tuning(width, threads)).run(bins, dy, got)

    assert got[-1] == 77
    np.testing.assert_array_equal(got[:-1].reshape(shape), gradient(shape, bins, dy))


@WIDTH
def test_threads_change_no_bits(width):
    x = normal(2, 4 * 49, 9, 21)
    bins = some_bins(x.shape, 30, (7, 7))

    one, three = (run(x, bins, Tuning(width, threads))[0] for threads in (1, 3))

    np.testing.assert_array_equal(one, three)


@WIDTH
def test_nan_and_infinity_reach_their_bins_alone(width):
    x = normal(1, 8, 4, 4)
    x[0, 0, 1, 1], x[0, 5, 2, 3] = np.nan, np.inf
    spans = np.array([[[0, 2], [2, 4]]])

    got, want = run(x, Bins(np.zeros(1, np.int64), spans, spans), Tuning(width))

    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_what_it_does_not_take_is_refused():
    with pytest.raises(ValueError, match="a multiple"):
        RegionMeans((1, 10, 3, 3), 1, (2, 2), Tuning(8))
