"""Factors and offsets of channels, and a rectifier, on arrays, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, in_memory, normal, out_of_memory

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.channel_affine import channel_factors
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.tuning import Tuning

THREADS = pytest.mark.parametrize("threads", [1, 2, 3])


def apply(x, factors, offsets, images, tuning):
    run = channel_factors(images, tuning)
    source = in_memory(x, images)
    target = np.full_like(source, np.nan)
    run(source, factors, offsets, target)
    run(source, factors, offsets, source)  # in place
    np.testing.assert_array_equal(source, target)
    return out_of_memory(target, images)


@WIDTH
@THREADS
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (7, 7)])
def test_each_channel_has_its_factor_and_offset(size, threads, width):
    shape = (2, 3 * width, *size)
    x, factors, offsets = normal(*shape), normal(3 * width, seed=1), normal(3 * width, seed=2)
    images = Images.channels_last(shape)

    y = apply(x, factors, offsets, images, Tuning(width=width, threads=threads))

    want = x.astype(float) * factors[:, None, None] + offsets[:, None, None]
    np.testing.assert_allclose(y, np.maximum(want, 0), rtol=1e-6, atol=1e-6)


@WIDTH
@THREADS
def test_what_lies_between_pixels_is_not_written(threads, width):
    c, step, tuning = 2 * width, 2 * width + 5, Tuning(width=width, threads=threads)
    images = Images((2, c, 3, 4), 12 * step, 4 * step, step)
    x, ones, none = normal(24, step), np.ones(c, np.float32), np.zeros(c, np.float32)
    source, target = aligned(x.size), aligned(x.size)
    source[:], target[:] = x.reshape(-1), np.nan

    channel_factors(images, tuning)(source, ones, none, target)

    y = target.reshape(24, -1)
    np.testing.assert_array_equal(y[:, :c], np.maximum(x[:, :c], 0))
    assert np.isnan(y[:, c:]).all()


@WIDTH
def test_nan_stays_and_minus_infinity_becomes_it(width):
    x = np.zeros((1, width, 1, 3), np.float32)
    x[..., 0], x[..., 1] = np.nan, -np.inf
    ones, none = np.ones(width, np.float32), np.zeros(width, np.float32)

    images = Images.channels_last(x.shape)
    y = apply(x, ones, none, images, Tuning(width=width))

    assert np.isnan(y[..., :2]).all()
    assert (y[..., 2] == 0).all()


@WIDTH
def test_channels_that_fill_no_whole_vectors_are_refused(width):
    images = Images.channels_last((1, width + 1, 2, 2))

    assert not images.has_whole_vectors(width)
    with pytest.raises(ValueError, match="whole vectors"):
        channel_factors(images, Tuning(width=width))


def test_code_names_the_instructions():
    images = Images.channels_last((1, 16, 2, 2))

    assert channel_factors(images, Tuning(width=16)).code == "factors llvm:avx512"
    assert channel_factors(images, Tuning(width=8)).code == "factors llvm:avx2"
