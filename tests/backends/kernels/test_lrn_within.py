"""Local response normalisation within channels on arrays, against its definition."""

import numpy as np
import pytest
from stages import WIDE, WIDTH, in_memory, normal, out_of_memory

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.lrn import LocalResponse, takes
from demitasse.backends.kernels.tuning import Tuning

ALPHA, BETA, K = 0.7, 0.75, 1.0
THREADS = pytest.mark.parametrize("threads", [1, 2, 3])
CHANNELS = pytest.mark.parametrize("channels", [48, 20, 2])
SIZES = pytest.mark.parametrize("size", [1, 3, 7])


def neighbours(values, size):
    """The sum of each element's neighbours in its plane."""
    half, (_, _, h, w) = size // 2, values.shape
    padded = np.pad(values, ((0, 0), (0, 0), (half, half), (half, half)))
    return sum(padded[:, :, i : i + h, j : j + w] for i in range(size) for j in range(size))


def defined(x, dy, size):
    """The output and the input's gradient, in float64."""
    x, dy = x.astype(float), dy.astype(float)
    rate = ALPHA / size**2
    scale = K + rate * neighbours(x * x, size)
    y = x * scale**-BETA
    shared = neighbours(dy * y / scale, size)
    return y, dy * scale**-BETA - 2 * rate * BETA * x * shared


def computed(x, dy, size, images, tuning):
    run = LocalResponse(images, size, ALPHA, K, tuning, within=True)
    source, slopes = in_memory(x, images), in_memory(dy, images)
    y, dx = (np.full_like(source, np.nan) for _ in range(2))
    scratch = aligned(run.forward.scratch_size)
    scratch[:] = np.nan
    run.forward(source, y, scratch)
    scratch[:] = np.nan
    run.backward(source, slopes, dx, scratch)
    return out_of_memory(y, images), out_of_memory(dx, images)


@WIDTH
@THREADS
@SIZES
@pytest.mark.parametrize("image", [(1, 1), (5, 3), (2, 9)])
@CHANNELS
def test_both_directions_are_those_of_the_definition(channels, image, size, threads, width):
    shape = (2, channels, *image)
    images = Images.channels_last(shape)
    x, dy = normal(*shape) * 3, normal(*shape, seed=1)

    got = computed(x, dy, size, images, Tuning(width=width, threads=threads))

    for one, other in zip(got, defined(x, dy, size), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@WIDTH
def test_the_bits_do_not_depend_on_the_number_of_threads(width):
    shape = (3, 2 * width, 4, 3)
    images = Images.channels_last(shape)
    x, dy = normal(*shape), normal(*shape, seed=1)

    one, many = (
        computed(x, dy, 3, images, Tuning(width=width, threads=threads)) for threads in (1, 3)
    )

    for got, want in zip(many, one, strict=True):
        np.testing.assert_array_equal(got, want)


@WIDE
def test_nan_and_infinity_reach_their_neighbours_and_no_others(width):
    shape = (1, width, 1, 12)
    x, dy = np.ones(shape, np.float32), np.ones(shape, np.float32)
    x[0, 3, 0, 2], x[0, 5, 0, 2] = np.nan, np.inf

    y, dx = computed(x, dy, 3, Images.channels_last(shape), Tuning(width=width))

    assert np.isnan(y[0, 3, 0, 1:4]).all()
    assert np.isnan(y[0, 5, 0, 2])
    assert (y[0, 5, 0, [1, 3]] == 0).all()
    assert np.isnan(dx[0, 3, 0, 1:4]).all()
    for one in (y, dx):
        assert np.isfinite(one[0, 3, 0, 6:]).all()
        assert np.isfinite(one[0, [0, 1, 2, 4, 6, 7]]).all()


@WIDTH
def test_what_kernels_do_not_take_is_refused(width):
    alone, good = (Images.channels_last((1, c, 2, 2)) for c in (1, width))

    assert takes(good, width, size=5, beta=BETA, within=True)
    assert not takes(Images.in_order((1, width, 2, 2)), width, size=5, beta=BETA, within=True)
    assert not takes(good, 0, size=5, beta=BETA, within=True)
    assert not takes(good, width, size=5, beta=0.5, within=True)
    assert not takes(good, width, size=17, beta=BETA, within=True)
    assert not takes(alone, width, size=5, beta=BETA, within=True)
    with pytest.raises(ValueError, match="several channels"):
        LocalResponse(alone, 5, ALPHA, K, Tuning(width=width), within=True)


def test_code_names_the_instructions():
    images = Images.channels_last((1, 16, 2, 2))

    codes = [
        LocalResponse(images, 5, ALPHA, K, Tuning(width=width), within=True).forward.code
        for width in (8, 16)
    ]

    assert codes == ["lrn within llvm:avx2", "lrn within llvm:avx512"]
