"""Pixels divided by the lengths of their channels, on arrays, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, in_memory, normal

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.lrn import L2Normalize, takes_lengths
from demitasse.backends.kernels.tuning import Tuning

THREADS = pytest.mark.parametrize("threads", [1, 3])
SHAPES = [(1, 32, 3, 5), (2, 48, 7, 9), (3, 16, 1, 1), (1, 16, 5, 1)]
ODD = [(2, 3, 4, 5), (1, 20, 3, 11), (2, 7, 1, 33), (1, 1, 2, 2)]


def check(x, images, tuning):
    """Hold results against numpy's, apart and in place."""
    n, c, h, w = x.shape
    run = L2Normalize(images, 0.25, tuning)
    run.scales[:] = np.linspace(0.5, 2, c)
    source = in_memory(x, images)
    target = np.full_like(source, 77.0)

    run(source, target)
    run(source, source)

    np.testing.assert_array_equal(source, target)
    blocks = target[: x.size].reshape(n, c // images.block, h, w, images.block)
    got = blocks.transpose(0, 1, 4, 2, 3).reshape(x.shape)
    wide = x.astype(float)
    lengths = np.sqrt((wide**2).sum(axis=1, keepdims=True) + 0.25)
    np.testing.assert_allclose(got, wide / lengths * run.scales[:, None, None], rtol=2e-6)


@WIDTH
@THREADS
@pytest.mark.parametrize("shape", SHAPES + ODD, ids=str)
def test_channels_lie_side_by_side(shape, threads, width):
    check(normal(*shape), Images.in_blocks(shape, shape[1]), Tuning(width, threads))


@WIDTH
@THREADS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_channels_lie_in_blocks(shape, threads, width):
    check(normal(*shape), Images.in_blocks(shape, width), Tuning(width, threads))


@WIDTH
def test_many_elements_are_divided_among_threads(width):
    shape = (2, 40, 30, 21)

    check(normal(*shape), Images.in_blocks(shape, 40), Tuning(width, 3))


@WIDTH
def test_nan_and_infinity_stay_in_their_pixel(width):
    shape = (1, 16, 2, 5)
    x = normal(*shape)
    x[0, 3, 1, 2], x[0, 4, 0, 0] = np.nan, np.inf
    images = Images.in_blocks(shape, 16)
    run = L2Normalize(images, 0.0, Tuning(width))
    run.scales[:] = 1
    source = in_memory(x, images)

    run(source, source)

    lost = np.isnan(source.reshape(2, 5, 16))
    assert lost[1, 2].all()
    assert lost[0, 0, 4]
    assert lost.sum() == 17


def test_what_it_does_not_take_is_refused():
    shape = (1, 24, 3, 3)
    images = Images.in_blocks(shape, 12)

    assert not takes_lengths(images, 8)
    with pytest.raises(ValueError, match="side by side"):
        L2Normalize(images, 0.0, Tuning(8))
