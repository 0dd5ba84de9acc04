"""Convolution over tiles and its gradients, on arrays, against the definition."""

import numpy as np
import pytest
from correlate import correlated, correlated_slopes, images
from rectifiers import NOT_NUMBERS, THEN, rectified
from stages import WIDTH, images_of, normal
from tilings import KERNELS, tiling

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.winograd.convolution import WinogradConvolution
from demitasse.backends.kernels.winograd.filters import Filters
from demitasse.backends.kernels.winograd.gradient import WinogradGradient

ROUNDING = 5e-5
"""Of the largest value."""

CASES = pytest.mark.parametrize(
    ("c", "m", "group", "threads", "tuning"),
    [
        (16, 16, 1, 1, {}),
        (19, 35, 1, 2, {}),
        (32, 64, 2, 2, {"stack_bytes": 1, "fewest_tiles": 1}),
        (32, 32, 2, 2, {"shared_filter_bytes": 0}),
        (32, 32, 1, 3, {"shared_filter_bytes": 0, "shared_stack_bytes": 1, "fewest_tiles": 1}),
    ],
    ids=["one thread", "odd channels", "short blocks", "shared blocks", "short shared blocks"],
)


def expect_close(got, want):
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= ROUNDING * np.abs(want).max()


def zeros_around(kernel):
    """Above and on the left: as many as keep the rows, and one."""
    return kernel[0] // 2, min(1, kernel[1] - 1)


def zeros(*sizes):
    return [np.zeros(size, np.float32) for size in sizes]


@WIDTH
@CASES
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_output_is_that_of_the_definition(kernel, c, m, group, threads, tuning, width):
    shape, pad = (3, c, 11, 9), zeros_around(kernel)
    of = tiling(shape, m, kernel, width, pad, group, threads, **tuning)
    (x, memory), weights, offsets = images(shape), normal(m, c // group, *kernel), normal(m)
    filters, y = Filters(of), np.zeros((3, *of.output, m), np.float32)
    positions = np.full(of.filter_size, np.nan, np.float32)
    filters.update(weights, positions)

    convolve = WinogradConvolution(
        of, Images.channels_last(shape), images_of(y.transpose(0, 3, 1, 2))
    )
    convolve.take_offsets(offsets)
    convolve(memory, y, positions, *zeros(convolve.scratch_size))

    want = correlated(x, weights, pad, group) + offsets[:, None, None]
    expect_close(y.transpose(0, 3, 1, 2), want)


@WIDTH
@THEN
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_a_rectifier_follows(kernel, then, width):
    shape, m = (2, 16, 9, 11), 2 * width + 3
    pad = zeros_around(kernel)
    of = tiling(shape, m, kernel, width, pad, threads=2)
    (x, memory), weights, offsets = images(shape), normal(m, 16, *kernel), normal(m, seed=2)
    offsets[:3] = NOT_NUMBERS
    filters, y = Filters(of), np.zeros((2, *of.output, m), np.float32)
    positions = np.full(of.filter_size, np.nan, np.float32)
    filters.update(weights, positions)

    target = images_of(y.transpose(0, 3, 1, 2))
    convolve = WinogradConvolution(of, Images.channels_last(shape), target, then)
    convolve.take_offsets(offsets)
    convolve(memory, y, positions, *zeros(convolve.scratch_size))

    sums, got = correlated(x, weights, pad) + offsets[:, None, None], y.transpose(0, 3, 1, 2)
    want = rectified(then, sums)
    np.testing.assert_array_equal(got[:, :3], want[:, :3])
    off = np.abs(got[:, 3:] - want[:, 3:])
    assert off.max() <= ROUNDING * np.abs(sums[:, 3:]).max()


@WIDTH
@CASES
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_gradient_of_the_input_is_a_convolution(kernel, c, m, group, threads, tuning, width):
    shape, pad = (2, c, 9, 10), zeros_around(kernel)
    of = tiling(shape, m, kernel, width, pad, group, threads, **tuning)
    weights, turned = normal(m, c // group, *kernel), of.backward
    slopes, memory = images((2, m, *of.output))
    filters, out = Filters(turned), np.zeros((2, 9, 10, c), np.float32)
    positions = np.full(turned.filter_size, np.nan, np.float32)
    filters.update(weights, positions)

    x = images_of(out.transpose(0, 3, 1, 2))
    convolve = WinogradConvolution(turned, Images.channels_last((2, m, *of.output)), x)
    convolve(memory, out, positions, *zeros(convolve.scratch_size))

    parts = weights.reshape(group, m // group, c // group, *kernel)
    back = parts.transpose(0, 2, 1, 3, 4)[..., ::-1, ::-1].reshape(c, m // group, *kernel)
    want = correlated(slopes, back, of.backward.pad, group)
    expect_close(out.transpose(0, 3, 1, 2), want)


@WIDTH
@CASES
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_gradients_of_weights_and_bias(kernel, c, m, group, threads, tuning, width):
    shape, pad = (3, c, 9, 10), zeros_around(kernel)
    of = tiling(shape, m, kernel, width, pad, group, threads, **tuning)
    (x, memory), (dy, slopes) = images(shape), images((3, m, *of.output), seed=1)
    weight, bias = np.zeros((m, c // group, *kernel), "f"), np.zeros(m, "f")

    x_images, y_images = Images.channels_last(shape), Images.channels_last(dy.shape)
    gradient = WinogradGradient(of, x_images, y_images)
    gradient(memory, slopes, weight, bias, *zeros(gradient.sums_size, gradient.scratch_size))

    expect_close(weight, correlated_slopes(x, dy, kernel, pad, group))
    expect_close(bias, dy.sum(axis=(0, 2, 3), dtype=float))


@WIDTH
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_threads_change_no_bits_whether_they_share_tiles_or_not(kernel, width):
    shape, m = (1, 96, 19, 18), 64
    weights, (_, memory), found, shared = normal(m, 96, *kernel), images(shape), [], []
    for threads in (1, 2, 3, 4):
        of = tiling(shape, m, kernel, width, zeros_around(kernel), threads=threads)
        positions, y = (
            np.full(of.filter_size, np.nan, np.float32),
            np.zeros((1, *of.output, m), "f"),
        )
        Filters(of).update(weights, positions)
        convolve = WinogradConvolution(
            of, Images.channels_last(shape), images_of(y.transpose(0, 3, 1, 2))
        )
        convolve(memory, y, positions, *zeros(convolve.scratch_size))
        found.append(y)
        shared.append(of.shared)

    assert found[0].any()
    assert shared[0] is False
    assert any(shared) or of.strips % 6 == 0
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_scratch_memory_that_is_too_small_is_refused():
    of = tiling((1, 8, 8, 8), 8, (3, 3), 8)
    plain = Images.channels_last((1, 8, 8, 8))
    convolve = WinogradConvolution(of, plain, plain)

    with pytest.raises(ValueError, match=f"give {convolve.scratch_size}"):
        convolve(*zeros(512, 512, of.filter_size), *zeros(convolve.scratch_size - 1))
