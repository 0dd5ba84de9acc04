"""Gradients of pointwise convolutions, on arrays, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, normal

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.pointwise.gradient import (
    PIXELS,
    PointwiseGradient,
    gradient_pays,
    lies_in_vectors,
)
from demitasse.backends.kernels.tuning import Tuning

THREADS = pytest.mark.parametrize("threads", [1, 2, 3, 7])
SIZES = pytest.mark.parametrize(
    "size", [(1, 1), (3, 5), (7, 7), (1, PIXELS + 1), (11, 23), (17, 31)], ids=str
)


def in_blocks(x, width, gap=0):
    """Return images in blocks, with elements between one image and the next, and their memory."""
    n, c, h, w = x.shape
    dense = Images.in_blocks(x.shape, width)
    stride = dense.image_stride + gap
    memory = aligned(n * stride)
    memory[:] = np.nan
    blocks = x.reshape(n, c // width, width, h * w).transpose(0, 1, 3, 2)
    memory.reshape(n, stride)[:, : dense.image_stride] = blocks.reshape(n, -1)
    return Images(x.shape, stride, w * width, width, width, dense.block_stride), memory


def gradients(x, dy, tuning, *, bias=True, gap=0):
    width, (c, m) = tuning.width, (x.shape[1], dy.shape[1])
    (images, source), (outputs, gradient) = in_blocks(x, width, gap), in_blocks(dy, width, gap)
    run = PointwiseGradient(images, outputs, tuning, bias=bias)
    weight, offsets = np.full(m * c, np.nan, np.float32), np.full(m, np.nan, np.float32)
    run(source, gradient, weight, offsets if bias else None)
    blocks = weight.reshape(m // width, c, width)
    return blocks.transpose(0, 2, 1).reshape(m, c), offsets


def expect_close(got, want, terms):
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * terms**0.5 * 4)


@WIDTH
@THREADS
@SIZES
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("vectors", [1, 2, 3, 4, 5])
def test_they_are_sums_over_all_pixels(vectors, n, size, threads, width):
    x = normal(n, 3 * width, *size)
    dy = normal(n, vectors * width, *size, seed=1)

    weight, bias = gradients(x, dy, Tuning(width, threads=threads))

    x, dy = x.astype(float), dy.astype(float)
    expect_close(weight, np.einsum("nchw,nmhw->mc", x, dy), n * size[0] * size[1])
    expect_close(bias, dy.sum(axis=(0, 2, 3)), n * size[0] * size[1])


@WIDTH
def test_images_may_lie_apart(width):
    x, dy = normal(3, 2 * width, 4, 5), normal(3, 2 * width, 4, 5, seed=1)

    weight, _ = gradients(x, dy, Tuning(width), bias=False, gap=7 * width)

    expect_close(weight, np.einsum("nchw,nmhw->mc", x.astype(float), dy), 60)


@WIDTH
def test_results_do_not_depend_on_the_threads(width):
    x, dy = normal(2, 4 * width, 9, 13), normal(2, 3 * width, 9, 13, seed=1)

    one, several = (gradients(x, dy, Tuning(width, threads=threads)) for threads in (1, 5))

    for first, second in zip(one, several, strict=True):
        np.testing.assert_array_equal(first, second)


@WIDTH
@pytest.mark.parametrize("place", [0, 1])
def test_other_layouts_are_refused(place, width):
    shape = (2, 2 * width, 3, 5)
    images = [Images.in_blocks(shape, width)] * 2
    images[place] = Images(shape, 2 * width * 15, 2 * width * 5, 2 * width, 2 * width)

    with pytest.raises(ValueError, match=f"blocks of {width} channels, pixel behind pixel"):
        PointwiseGradient(*images, Tuning(width), bias=False)
    assert not lies_in_vectors(images[place], width)


@WIDTH
@pytest.mark.parametrize(
    ("channels", "filters", "pays"),
    [(256, 64, True), (256, 192, True), (256, 256, False), (64, 160, False), (16, 16, False)],
)
def test_it_pays_for_few_filters_of_many_channels(channels, filters, pays, width):
    x, y = (2, channels, 14, 14), (2, filters, 14, 14)

    assert gradient_pays(x, y, Tuning(width, threads=2)) == pays
