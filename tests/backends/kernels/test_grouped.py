"""Depthwise convolution of any windows and its gradients on arrays, against the definition."""

import numpy as np
import pytest
from correlate import correlated, correlated_slopes
from rectifiers import THEN, rectified
from stages import WIDE, WIDTH, in_memory, normal, out_of_memory

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, RELU
from demitasse.backends.kernels.grouped import (
    GroupedConvolution,
    GroupedGradient,
    InputGradient,
    plan_grouped,
)
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined

WINDOWS = pytest.mark.parametrize(
    "window",
    [
        {},
        {"stride": (2, 2)},
        {"kernel": (5, 5), "pad": (2, 2), "stride": (2, 1)},
        {"kernel": (3, 3), "pad": (2, 3), "dilation": (2, 3)},
        {"kernel": (1, 3), "pad": (0, 4), "stride": (1, 3)},
        {"kernel": (2, 2), "pad": (0, 0)},
    ],
    ids=["3x3", "strides", "5x5", "dilation", "wide padding", "no padding"],
)
SIZES = pytest.mark.parametrize("size", [(2, 1), (5, 3), (6, 17), (9, 30)], ids=str)


def convolution(n, channels, size, *, kernel=(3, 3), stride=(1, 1), pad=(1, 1), dilation=(1, 1)):
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    out = [(s + 2 * p - r) // t + 1 for s, p, r, t in zip(size, pad, reach, stride, strict=True)]
    x, y = (n, channels, *size), (n, channels, *out)
    return ops.Conv("float32", x, y, 1, kernel, stride, pad, dilation, group=channels, bias=True)


def convolved(op, x, weights, offsets, tuning, *, then=NOTHING, slopes=None):
    parts = plan_grouped(op, op.bottom, op.top, tuning)
    source, target = (Images.in_blocks(shape, shape[1]) for shape in (op.bottom, op.top))
    run = GroupedConvolution(parts, source, target, then)
    run.update(weights.reshape(-1))
    if slopes is not None:
        run.take_slopes(slopes)
    memory = aligned(int(np.prod(op.top)))
    memory[:] = np.nan
    run(in_memory(x, source), memory, offsets)
    return out_of_memory(memory, target)


def operands(op):
    weights = normal(op.top[1], 1, *op.kernel, seed=1)
    return normal(*op.bottom), weights, normal(op.top[1], seed=2)


def expect_close(got, want):
    assert np.abs(got - want).max() <= 5e-6 * max(1, np.abs(want).max())


@WIDE
@WINDOWS
@SIZES
def test_the_output_is_that_of_the_definition(size, window, width):
    op = convolution(2, 2 * width + 1, size, **window)
    if min(op.top) < 1:
        pytest.skip("the window does not fit")
    x, weights, offsets = operands(op)

    y = convolved(op, x, weights, offsets, Tuning(width=width))

    want = correlated(x, weights, op.pad, op.group, op.stride, op.dilation)
    expect_close(y, want + offsets[:, None, None])


@WIDTH
@pytest.mark.parametrize("options", [
    {"threads": 2}, {"threads": 3}, {"threads": 40}, {"group_filter_bytes": 1},
    {"group_filter_bytes": 1, "threads": 3}, {"cached_bytes": 0},
], ids=str)  # fmt: skip
def test_neither_threads_nor_parts_nor_what_is_fetched_change_a_bit(options, width):
    op = convolution(2, 5 * width, (5, 19), stride=(2, 1))
    x, weights, offsets = operands(op)

    one = convolved(op, x, weights, offsets, Tuning(width=width))
    other = convolved(op, x, weights, offsets, Tuning(width=width, **options))

    np.testing.assert_array_equal(other, one)


def test_large_filters_are_divided_into_parts_and_large_images_fetched():
    op = convolution(1, 256, (28, 28))

    few, many = (
        plan_grouped(op, op.bottom, op.top, Tuning(width=16, **sizes))
        for sizes in ({}, {"group_filter_bytes": 1 << 11, "cached_bytes": 1 << 20})
    )

    assert (few.parts, few.fetches) == (1, False)
    assert (many.parts, many.fetches) == (5, True)  # of 9 KiB


@WIDTH
@THEN
def test_sums_are_rectified_limited_or_multiplied_with_slopes(then, width):
    op = convolution(1, 2 * width, (4, 9))
    x, weights, offsets = operands(op)
    slopes = normal(op.top[1], seed=3)

    plain = convolved(op, x, weights, offsets, Tuning(width=width))
    ended = convolved(op, x, weights, offsets, Tuning(width=width), then=then)
    sloped = convolved(op, x, weights, offsets, Tuning(width=width), slopes=slopes)

    np.testing.assert_array_equal(ended, rectified(then, plain))
    np.testing.assert_array_equal(sloped, np.where(plain > 0, plain, plain * slopes[:, None, None]))


@WIDTH
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_its_channel_and_windows_and_no_others(bad, width):
    op = convolution(1, 2 * width, (5, 12))
    x, weights, offsets = operands(op)
    x[0, width + 1, 2, 6] = bad

    y = convolved(op, x, np.abs(weights), offsets, Tuning(width=width), then=RELU)

    lost = np.zeros(op.top, bool)
    lost[0, width + 1, 1:4, 5:8] = True
    np.testing.assert_array_equal(~np.isfinite(y), lost)
    np.testing.assert_array_equal(y[lost], bad)


@WIDE
@pytest.mark.parametrize("blocks", [(3, 1), (1, 3), (1, 1)], ids=str)
def test_images_may_lie_in_blocks_of_channels(blocks, width):
    op = convolution(2, 3 * width, (9, 16))
    x, weights, offsets = operands(op)
    source, target = (
        Images.in_blocks(shape, block * width)
        for shape, block in zip((op.bottom, op.top), blocks, strict=True)
    )
    run = GroupedConvolution(plan_grouped(op, op.bottom, op.top, Tuning(width)), source, target)
    run.update(weights.reshape(-1))
    memory = aligned(int(np.prod(op.top)))

    run(in_memory(x, source), memory, offsets)

    whole = convolved(op, x, weights, offsets, Tuning(width))
    np.testing.assert_array_equal(out_of_memory(memory, target), whole)


@WIDTH
def test_blocks_have_whole_vectors(width):
    op = convolution(1, 3 * width, (9, 9))
    blocks = Images.in_blocks(op.bottom, width // 2)

    with pytest.raises(ValueError, match="whole vectors"):
        GroupedConvolution(plan_grouped(op, op.bottom, op.top, Tuning(width)), blocks, blocks)


def slopes_of(op, x, dy, block, tuning, *, bias=True):
    """Return the gradients of weights and bias."""
    images = [Images.in_blocks(shape, block) for shape in (op.bottom, op.top)]
    parts = plan_grouped(op, op.bottom, op.top, tuning)
    run = GroupedGradient(parts, *images)
    weight = aligned(op.top[1] * int(np.prod(op.kernel)))
    offsets = aligned(op.top[1]) if bias else None
    sources = [in_memory(one, where) for one, where in zip((x, dy), images, strict=True)]
    for _ in range(2):  # what was summed before is gone
        run(*sources, weight, offsets)
    return weight.reshape(op.top[1], -1, *op.kernel).copy(), offsets


@WIDE
@WINDOWS
@SIZES
def test_the_gradients_of_filters_and_bias(size, window, width):
    op = convolution(2, 2 * width + 1, size, **window)
    if min(op.top) < 1:
        pytest.skip("the window does not fit")
    x, dy = normal(*op.bottom), normal(*op.top, seed=1)

    weight, bias = slopes_of(op, x, dy, op.bottom[1], Tuning(width))

    where = op.kernel, op.pad, op.group, op.stride, op.dilation
    expect_close(weight, correlated_slopes(x, dy, *where))
    expect_close(bias, dy.astype(float).sum(axis=(0, 2, 3)))


@WIDE
def test_neither_threads_nor_blocks_change_a_bit_of_the_gradients(width):
    op = convolution(3, 5 * width, (24, 31), stride=(1, 2))
    x, dy = normal(*op.bottom), normal(*op.top, seed=1)

    (one, bias), *others = (
        slopes_of(op, x, dy, block * width, Tuning(width, threads))
        for block, threads in ((5, 1), (5, 2), (5, 40), (1, 3), (1, 7))
    )
    without, _ = slopes_of(op, x, dy, width, Tuning(width), bias=False)

    np.testing.assert_array_equal(without, one)
    for weight, other_bias in others:
        np.testing.assert_array_equal(weight, one)
        np.testing.assert_array_equal(other_bias, bias)


def input_gradient(op, dy, weights, tuning, blocks=None):
    """Return the gradient of the input; blocks of channels of the input and of the output."""
    blocks = blocks or (op.bottom[1], op.top[1])
    x, y = (
        Images.in_blocks(shape, block)
        for shape, block in zip((op.bottom, op.top), blocks, strict=True)
    )
    run = InputGradient(plan_grouped(op, op.bottom, op.top, tuning), x, y)
    run.update(weights.reshape(-1))
    memory = aligned(int(np.prod(op.bottom)))
    memory[:] = np.nan
    run(in_memory(dy, y), memory)
    return out_of_memory(memory, x)


@WIDE
@SIZES
@pytest.mark.parametrize("window", [
    {}, {"kernel": (5, 3), "pad": (1, 2)}, {"kernel": (3, 3), "pad": (2, 0), "dilation": (2, 1)},
    {"pad": (3, 4)}, {"stride": (2, 2)}, {"kernel": (5, 5), "pad": (2, 2), "stride": (2, 3)},
    {"kernel": (2, 1), "pad": (0, 0), "stride": (3, 2)}, {"kernel": (7, 7), "pad": (3, 3)},
    {"kernel": (3, 3), "pad": (2, 4), "stride": (2, 3), "dilation": (2, 2)},
], ids=str)  # fmt: skip
def test_the_gradient_of_the_input(window, size, width):
    op = convolution(2, 2 * width + 1, size, **window)
    if min(op.top) < 1:
        pytest.skip("the window does not fit")
    dy, weights = normal(*op.top), operands(op)[1]

    dx = input_gradient(op, dy, weights, Tuning(width)).astype(float)

    for seed in range(3, 6):  # a small step along any input changes the outputs by as much
        x = normal(*op.bottom, seed=seed)
        y = correlated(x, weights, op.pad, op.group, op.stride, op.dilation)
        scale = np.linalg.norm(dx) * np.linalg.norm(x)
        assert abs((dy * y).sum() - (dx * x).sum()) <= 1e-6 * scale


@WIDE
def test_neither_threads_nor_blocks_change_a_bit_of_the_gradient_of_the_input(width):
    op = convolution(3, 4 * width, (11, 9), stride=(1, 2))
    dy, weights = normal(*op.top), operands(op)[1]

    one = input_gradient(op, dy, weights, Tuning(width))

    for threads, blocks in ((2, None), (3, (width, width)), (7, (4 * width, 2 * width))):
        other = input_gradient(op, dy, weights, Tuning(width, threads), blocks)
        np.testing.assert_array_equal(other, one)


def test_windows_that_reach_no_pixel_of_a_phase_leave_zeros_whatever_the_gradient_is():
    op = convolution(1, 16, (5, 5), kernel=(1, 1), pad=(0, 0), stride=(2, 2))
    dy = np.full(op.top, np.inf, np.float32)

    dx = input_gradient(op, dy, np.ones((16, 1, 1, 1), np.float32), Tuning(16))

    want = np.zeros(op.bottom, np.float32)
    want[:, :, ::2, ::2] = np.inf
    np.testing.assert_array_equal(dx, want)


@pytest.mark.parametrize(
    "change",
    [
        {"group": 1},
        {"group": 16},
        {"top": (1, 64, 9, 9)},
        {"bottom": (1, 8, 9, 9), "top": (1, 8, 9, 9), "group": 8},
        {"kernel": (3, 12)},
        {"kernel": (3,)},
    ],
    ids=str,
)
def test_other_convolutions_are_declined(change):
    op = ops.Conv(**{**vars(convolution(1, 32, (9, 9))), **change})

    with pytest.raises(Declined, match="takes two axes, 16 channels or more"):
        plan_grouped(op, op.bottom, op.top, Tuning(width=16))


def test_windows_that_see_many_pixels_are_declined():
    op = convolution(1, 32, (9, 200), dilation=(1, 60))

    with pytest.raises(Declined, match="pixels at a time; kernels take up to 320"):
        plan_grouped(op, op.bottom, op.top, Tuning(width=16, threads=2))


def test_it_can_be_switched_off():
    op = convolution(1, 32, (9, 9))

    with pytest.raises(Declined, match="off"):
        plan_grouped(op, op.bottom, op.top, Tuning(width=16, without=frozenset({"grouped"})))


def test_code_names_the_instructions():
    op = convolution(1, 32, (9, 9))

    assert plan_grouped(op, op.bottom, op.top, Tuning(width=8)).code == "grouped llvm:avx2"
    assert plan_grouped(op, op.bottom, op.top, Tuning(width=16)).code == "grouped llvm:avx512"
