"""Planes resized by bilinear interpolation, on arrays, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, in_memory, normal, out_of_memory

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.resize import Interpolation
from demitasse.backends.kernels.tuning import Tuning

THREADS = pytest.mark.parametrize("threads", [1, 3])
SIZES = [
    ((4, 5), (9, 7)),
    ((7, 6), (3, 1)),
    ((1, 3), (5, 9)),
    ((3, 3), (3, 3)),
    ((20, 20), (40, 30)),
]


def resized(x, size, axis):
    """Return what lies between rows or columns, as many as are asked for, in float32."""
    places = np.arange(size) * (x.shape[axis] - 1)
    step = max(1, size - 1)
    low = places // step
    shape = [-1 if place == axis else 1 for place in range(4)]
    share = ((places % step).astype(np.float32) / np.float32(step)).reshape(shape)
    below, above = (x.take(at, axis=axis) for at in (low, np.minimum(low + 1, x.shape[axis] - 1)))
    return below * (1 - share) + above * share


def check(x, size, tuning, cut=(0, 0)):
    """Hold results against numpy's, bit for bit."""
    n, c, h, w = x.shape
    part = h - 2 * cut[0], w - 2 * cut[1]
    source = Images.channels_last(x.shape)
    target = Images.channels_last((n, c, *size))
    got = np.full(n * c * size[0] * size[1], 77.0, np.float32)

    Interpolation(source, target, cut, part, tuning)(in_memory(x, source), got)

    whole = x[:, :, cut[0] : h - cut[0], cut[1] : w - cut[1]]
    want = resized(resized(whole, size[0], 2), size[1], 3)
    np.testing.assert_array_equal(out_of_memory(got, target), want)


@WIDTH
@THREADS
@pytest.mark.parametrize("channels", [1, 7, 16, 21])
@pytest.mark.parametrize(("size", "out"), SIZES, ids=str)
def test_channels_lie_side_by_side(size, out, channels, threads, width):
    check(normal(2, channels, *size), out, Tuning(width, threads))


@WIDTH
def test_what_is_cut_off_does_not_count(width):
    x = normal(1, 20, 6, 7)
    x[:, :, 0] = x[:, :, :, -1] = np.nan

    check(x, (8, 3), Tuning(width), cut=(1, 1))


@WIDTH
def test_nan_and_infinity_reach_their_neighbours_alone(width):
    x = normal(1, 16, 4, 4)
    x[0, 3, 1, 2], x[0, 4, 0, 0] = np.nan, np.inf

    check(x, (7, 7), Tuning(width))


def test_what_it_does_not_take_is_refused():
    images = Images.in_order((1, 24, 3, 3))

    with pytest.raises(ValueError, match="side by side"):
        Interpolation(images, images, (0, 0), (3, 3), Tuning(8))
