"""Convolution over tiles of the phases of a stride, and its gradients, against the definition."""

import numpy as np
import pytest
from correlate import correlated, correlated_slopes, images
from stages import WIDTH, images_of, normal
from tilings import STRIDES, strided

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.winograd.convolution import WinogradConvolution
from demitasse.backends.kernels.winograd.filters import Filters
from demitasse.backends.kernels.winograd.gradient import WinogradGradient

ROUNDING = 5e-5
"""Of the largest value."""

WINDOWS = pytest.mark.parametrize("windows", STRIDES, ids=str)

CASES = pytest.mark.parametrize(
    ("c", "m", "tuning"),
    [
        (16, 16, {}),
        (19, 35, {"threads": 2}),
        (35, 19, {"threads": 2, "stack_bytes": 1, "fewest_tiles": 1}),
        (32, 32, {"threads": 3, "shared_filter_bytes": 0}),
    ],
    ids=["one thread", "odd channels", "short blocks", "shared blocks"],
)


def expect_close(got, want):
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= ROUNDING * np.abs(want).max()


def scratch(*sizes):
    return [np.full(size, np.nan, np.float32) for size in sizes]


def transformed(of, weights):
    [positions] = scratch(of.filter_size)
    Filters(of).update(weights, positions)
    return positions


@WIDTH
@CASES
@WINDOWS
def test_the_output_is_that_of_the_definition(windows, c, m, tuning, width):
    shape, (kernel, stride, pad) = (3, c, 11, 13), windows
    of = strided(shape, m, *windows, width, **tuning)
    (x, memory), weights, offsets = images(shape), normal(m, c, *kernel), normal(m)
    y = np.zeros((3, *of.output, m), np.float32)

    channels_first = images_of(y.transpose(0, 3, 1, 2))
    convolve = WinogradConvolution(of, Images.channels_last(shape), channels_first)
    convolve.take_offsets(offsets)
    convolve(memory, y, transformed(of, weights), *scratch(convolve.scratch_size))

    want = correlated(x, weights, pad, 1, stride) + offsets[:, None, None]
    expect_close(y.transpose(0, 3, 1, 2), want)


@WIDTH
@CASES
@WINDOWS
def test_the_gradient_of_the_input(windows, c, m, tuning, width):
    shape, (kernel, stride, pad) = (2, c, 12, 10), windows
    of = strided(shape, m, *windows, width, **tuning)
    weights, back, offsets = normal(m, c, *kernel), of.backward, normal(c, seed=2)
    dy, memory = images((2, m, *of.output))
    out = np.full((2, 12, 10, c), np.nan, np.float32)

    dx = images_of(out.transpose(0, 3, 1, 2))
    convolve = WinogradConvolution(back, Images.channels_last(dy.shape), dx)
    convolve.take_offsets(offsets)
    convolve(memory, out, transformed(back, weights), *scratch(convolve.scratch_size))

    padded = np.zeros((2, c, 12 + 2 * pad[0], 10 + 2 * pad[1]))
    for i, j in np.ndindex(kernel):
        rows, columns = (
            slice(at, at + step * size, step)
            for at, step, size in zip((i, j), stride, of.output, strict=True)
        )
        padded[:, :, rows, columns] += np.einsum("nmhw,mc->nchw", dy, weights[:, :, i, j])
    want = padded[:, :, pad[0] : pad[0] + 12, pad[1] : pad[1] + 10] + offsets[:, None, None]
    expect_close(out.transpose(0, 3, 1, 2), want)


@WIDTH
@CASES
@WINDOWS
def test_the_gradients_of_weights_and_bias(windows, c, m, tuning, width):
    shape, (kernel, stride, pad) = (3, c, 11, 10), windows
    of = strided(shape, m, *windows, width, **tuning)
    (x, memory), (dy, slopes) = images(shape), images((3, m, *of.output), seed=1)
    weight, bias = np.full((m, c, *kernel), np.nan, "f"), np.zeros(m, "f")

    gradient = WinogradGradient(of, Images.channels_last(shape), Images.channels_last(dy.shape))
    gradient(memory, slopes, weight, bias, *scratch(gradient.sums_size, gradient.scratch_size))

    expect_close(weight, correlated_slopes(x, dy, kernel, pad, 1, stride))
    expect_close(bias, dy.sum(axis=(0, 2, 3), dtype=float))
