"""Convolution over tiles and its gradients, on arrays, against the definition."""

import numpy as np
import pytest
from correlate import correlated, correlated_slopes, images
from rectifiers import NOT_NUMBERS, THEN, rectified
from stages import WIDTH, images_of, normal
from tilings import KERNELS, LARGE, STRIDES, strided, tiling

from demitasse.backends.kernels.epilogue import NOTHING
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.winograd.convolution import WinogradConvolution, WinogradGradient
from demitasse.backends.kernels.winograd.filters import filter_transform

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

WINDOWS = pytest.mark.parametrize("windows", STRIDES, ids=str)

STRIDED = pytest.mark.parametrize(
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


def zeros_around(kernel):
    """Above and on the left: as many as keep the rows, and one."""
    return kernel[0] // 2, min(1, kernel[1] - 1)


def unwritten(*sizes):
    return [np.full(size, np.nan, np.float32) for size in sizes]


def transformed(of, weights):
    [positions] = unwritten(of.filter_size)
    filter_transform(of)(positions, weights)
    return positions


def convolved(of, memory, weights, shape, offsets=None, then=NOTHING):
    """The result (N, M, H, W), whose memory has the given shape, (N, H, W, M)."""
    n, h, w, c = memory.shape
    [memory_of_y] = unwritten(shape)
    y = memory_of_y.transpose(0, 3, 1, 2)
    convolve = WinogradConvolution(of, Images.channels_last((n, c, h, w)), images_of(y), then)
    if offsets is not None:
        convolve.take_offsets(offsets)
    convolve(memory, memory_of_y, transformed(of, weights), *unwritten(convolve.scratch_size))
    return y


def gradients(of, shape, m, kernel):
    """Image, gradient of the output, and what the kernel makes of them, of weights and bias."""
    (x, memory), (dy, slopes) = images(shape), images((shape[0], m, *of.output), seed=1)
    weight, bias = np.full((m, shape[1] // of.groups, *kernel), np.nan, "f"), np.zeros(m, "f")
    gradient = WinogradGradient(of, Images.channels_last(shape), Images.channels_last(dy.shape))
    gradient(memory, slopes, weight, bias, *unwritten(gradient.sums_size, gradient.scratch_size))
    return x, dy, weight, bias


@WIDTH
@CASES
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_output_is_that_of_the_definition(kernel, c, m, group, threads, tuning, width):
    shape, pad = (3, c, 11, 9), zeros_around(kernel)
    of = tiling(shape, m, kernel, width, pad, group, threads, **tuning)
    (x, memory), weights, offsets = images(shape), normal(m, c // group, *kernel), normal(m)

    y = convolved(of, memory, weights, (3, *of.output, m), offsets)

    expect_close(y, correlated(x, weights, pad, group) + offsets[:, None, None])


@WIDTH
@THEN
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_a_rectifier_follows(kernel, then, width):
    shape, m = (2, 16, 9, 11), 2 * width + 3
    pad = zeros_around(kernel)
    of = tiling(shape, m, kernel, width, pad, threads=2)
    (x, memory), weights, offsets = images(shape), normal(m, 16, *kernel), normal(m, seed=2)
    offsets[:3] = NOT_NUMBERS

    got = convolved(of, memory, weights, (2, *of.output, m), offsets, then)

    sums = correlated(x, weights, pad) + offsets[:, None, None]
    want = rectified(then, sums)
    np.testing.assert_array_equal(got[:, :3], want[:, :3])
    off = np.abs(got[:, 3:] - want[:, 3:])
    assert off.max() <= ROUNDING * np.abs(sums[:, 3:]).max()


@WIDTH
@CASES
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_gradient_of_the_input_is_a_convolution(kernel, c, m, group, threads, tuning, width):
    shape, pad = (2, c, 9, 10), zeros_around(kernel)
    turned = tiling(shape, m, kernel, width, pad, group, threads, **tuning).backward
    weights, (slopes, memory) = normal(m, c // group, *kernel), images((2, m, *turned.size))

    dx = convolved(turned, memory, weights, (2, 9, 10, c))

    parts = weights.reshape(group, m // group, c // group, *kernel)
    back = parts.transpose(0, 2, 1, 3, 4)[..., ::-1, ::-1].reshape(c, m // group, *kernel)
    expect_close(dx, correlated(slopes, back, turned.pad, group))


@WIDTH
@CASES
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_gradients_of_weights_and_bias(kernel, c, m, group, threads, tuning, width):
    shape, pad = (3, c, 9, 10), zeros_around(kernel)
    of = tiling(shape, m, kernel, width, pad, group, threads, **tuning)

    x, dy, weight, bias = gradients(of, shape, m, kernel)

    expect_close(weight, correlated_slopes(x, dy, kernel, pad, group))
    expect_close(bias, dy.sum(axis=(0, 2, 3), dtype=float))


@WIDTH
@STRIDED
@pytest.mark.parametrize("kernel", LARGE, ids=str)
@pytest.mark.parametrize(
    ("size", "all_around"), [((12, 11), False), ((2, 1), True)], ids=["wide", "narrow"]
)
def test_large_windows_are_sums_of_their_parts(kernel, size, all_around, c, m, tuning, width):
    shape, pad = (2, c, *size), zeros_around(kernel)
    if all_around:
        pad = tuple(k - 1 for k in kernel)
    of = tiling(shape, m, kernel, width, pad, **tuning)
    (x, memory), weights, offsets = images(shape), normal(m, c, *kernel), normal(m)
    (dy, slopes), turned = images((2, m, *of.output), seed=1), of.backward

    y = convolved(of, memory, weights, (2, *of.output, m), offsets)
    dx = convolved(turned, slopes, weights, (2, *size, c))
    *_, weight, bias = gradients(of, shape, m, kernel)

    expect_close(y, correlated(x, weights, pad) + offsets[:, None, None])
    back = weights.swapaxes(0, 1)[..., ::-1, ::-1]
    expect_close(dx, correlated(dy, back, turned.pad))
    expect_close(weight, correlated_slopes(x, dy, kernel, pad))
    expect_close(bias, dy.sum(axis=(0, 2, 3), dtype=float))


@WIDTH
@STRIDED
@WINDOWS
def test_the_output_of_a_stride(windows, c, m, tuning, width):
    shape, (kernel, stride, pad) = (3, c, 11, 13), windows
    of = strided(shape, m, *windows, width, **tuning)
    (x, memory), weights, offsets = images(shape), normal(m, c, *kernel), normal(m)

    y = convolved(of, memory, weights, (3, *of.output, m), offsets)

    expect_close(y, correlated(x, weights, pad, 1, stride) + offsets[:, None, None])


@WIDTH
@STRIDED
@WINDOWS
def test_the_gradient_of_the_input_of_a_stride(windows, c, m, tuning, width):
    kernel, stride, pad = windows
    back = strided((2, c, 12, 10), m, *windows, width, **tuning).backward
    weights, offsets, (dy, memory) = normal(m, c, *kernel), normal(c), images((2, m, *back.size))

    dx = convolved(back, memory, weights, (2, 12, 10, c), offsets)

    padded = np.zeros((2, c, 12 + 2 * pad[0], 10 + 2 * pad[1]))
    for i, j in np.ndindex(kernel):
        rows, columns = (
            slice(at, at + step * size, step)
            for at, step, size in zip((i, j), stride, back.size, strict=True)
        )
        padded[:, :, rows, columns] += np.einsum("nmhw,mc->nchw", dy, weights[:, :, i, j])
    want = padded[:, :, pad[0] : pad[0] + 12, pad[1] : pad[1] + 10] + offsets[:, None, None]
    expect_close(dx, want)


@WIDTH
@STRIDED
@WINDOWS
def test_the_gradients_of_weights_and_bias_of_a_stride(windows, c, m, tuning, width):
    shape, (kernel, stride, pad) = (3, c, 11, 10), windows
    of = strided(shape, m, *windows, width, **tuning)

    x, dy, weight, bias = gradients(of, shape, m, kernel)

    expect_close(weight, correlated_slopes(x, dy, kernel, pad, 1, stride))
    expect_close(bias, dy.sum(axis=(0, 2, 3), dtype=float))


@WIDTH
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_threads_change_no_bits_whether_they_share_tiles_or_not(kernel, width):
    shape, m = (1, 96, 7, 18), 64
    weights, (_, memory), found, shared = normal(m, 96, *kernel), images(shape), [], []
    for threads in (1, 2, 3, 4):
        of = tiling(shape, m, kernel, width, zeros_around(kernel), threads=threads)
        found.append(convolved(of, memory, weights, (1, *of.output, m)))
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
        convolve(*unwritten(512, 512, of.filter_size), *unwritten(convolve.scratch_size - 1))
