"""Depthwise and grouped convolution on arrays, against the definition."""

import math

import numpy as np
import pytest
from correlate import correlated, correlated_slopes
from rectifiers import NOT_NUMBERS, THEN, rectified
from stages import WIDTH, in_memory, normal, out_of_memory

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise import (
    MOST_TAPS,
    DepthwiseConvolution,
    DepthwiseGradients,
    plan_depthwise,
)
from demitasse.backends.kernels.epilogue import NOTHING, RELU
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined

THREADS = pytest.mark.parametrize("threads", [1, 2, 3])
WINDOWS = pytest.mark.parametrize(
    "window",
    [
        {},
        {"stride": (2, 2)},
        {"kernel": (5, 5), "pad": (2, 2), "stride": (2, 1)},
        {"kernel": (3, 3), "pad": (2, 2), "dilation": (2, 2)},
        {"kernel": (1, 3), "pad": (0, 4), "stride": (1, 3)},
        {"kernel": (2, 2), "pad": (0, 0)},
        {"kernel": (9, 7), "pad": (4, 3)},
    ],
    ids=["3x3", "strides", "5x5", "dilation", "wide padding", "no padding", "9x7"],
)
SIZES = pytest.mark.parametrize("size", [(1, 2), (5, 3), (6, 17), (20, 29)], ids=str)


MEMBERS = pytest.mark.parametrize("members", [2, 4, 8, 16])


def convolution(
    n, c, size, *, members=1, outputs=1, kernel=(3, 3), stride=(1, 1), pad=(1, 1), dilation=(1, 1)
):
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    out = [(s + 2 * p - r) // t + 1 for s, p, r, t in zip(size, pad, reach, stride, strict=True)]
    x, y = (n, c, *size), (n, c * outputs, *out)
    return ops.Conv(
        "float32", x, y, 1, kernel, stride, pad, dilation, group=c // members, bias=True
    )


def last(shape):
    return Images.channels_last(shape)


def filled(x, channels):
    """Return a batch of images with channels of zeros behind its own."""
    return np.pad(x, [(0, 0), (0, channels - x.shape[1]), (0, 0), (0, 0)])


def convolved(op, x, weights, offsets, tuning, then=NOTHING):
    strips = plan_depthwise(op, op.bottom, op.top, tuning)
    n, c, *size = op.top
    channels = strips.channels * strips.group.outputs
    x = filled(x, strips.channels)
    source, target = last(x.shape), last((n, channels, *size))
    run = DepthwiseConvolution(strips, source, target, then)
    run.update(weights.reshape(-1))
    memory = aligned(n * channels * math.prod(size))
    memory[:] = np.nan
    if offsets is not None:
        offsets = np.pad(offsets, (0, channels - c))
    run(in_memory(x, source), memory, offsets)
    found = out_of_memory(memory, target)
    assert not found[:, c:].any()
    return found[:, :c]


def expect_close(got, want):
    assert np.abs(got - want).max() <= 5e-6 * max(1, np.abs(want).max())


@WIDTH
@THREADS
@WINDOWS
@SIZES
@THEN
def test_the_output_is_that_of_the_definition(then, size, window, threads, width):
    c = 2 * width + 5
    op = convolution(2, c, size, **window)
    if min(op.top) < 1:
        pytest.skip("the window does not fit")
    x, weights, offsets = normal(*op.bottom), normal(c, 1, *op.kernel, seed=1), normal(c, seed=2)

    tuning = Tuning(width=width, threads=threads)
    y = convolved(op, x, weights, offsets, tuning, then)

    want = correlated(x, weights, op.pad, c, op.stride, op.dilation) + offsets[:, None, None]
    expect_close(y, rectified(then, want))


@WIDTH
@MEMBERS
@pytest.mark.parametrize(
    "window",
    [
        {},
        {"stride": (2, 2)},
        {"kernel": (5, 5), "pad": (2, 2), "stride": (2, 1)},
        {"kernel": (3, 3), "pad": (2, 2), "dilation": (2, 2)},
        {"kernel": (1, 3), "pad": (0, 4), "stride": (1, 3)},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(5, 3), (6, 17), (14, 14)], ids=str)
def test_groups_are_convolved_by_the_definition(size, window, members, width):
    c = 3 * max(width, members)
    op = convolution(2, c, size, members=members, **window)
    weights = normal(c, members, *op.kernel, seed=1)
    x, offsets = normal(*op.bottom), normal(c, seed=2)
    if members < width and members * weights[0, 0].size > MOST_TAPS:
        with pytest.raises(Declined, match=f"{MOST_TAPS} taps"):
            convolved(op, x, weights, offsets, Tuning(width))
        return

    y = convolved(op, x, weights, offsets, Tuning(width, threads=2), RELU)

    want = correlated(x, weights, op.pad, op.group, op.stride, op.dilation)
    expect_close(y, np.maximum(want + offsets[:, None, None], 0))


@WIDTH
@WINDOWS
@THEN
@pytest.mark.parametrize("channels", [1, 3])
def test_zeros_fill_the_vector_of_few_channels(channels, then, window, width):
    op = convolution(2, channels, (12, 19), **window)
    x, dy, weights = operands(op)
    offsets = normal(channels, seed=3)

    y = convolved(op, x, weights, offsets, Tuning(width, threads=2), then)
    dx, weight, bias = gradients(op, x, dy, weights, Tuning(width, threads=2), bias=True)

    want = correlated(x, weights, op.pad, channels, op.stride, op.dilation)
    expect_close(y, rectified(then, want + offsets[:, None, None]))
    expect_gradients(op, (x, dy, weights), dx, weight)
    expect_close(bias, dy.astype(float).sum(axis=(0, 2, 3)))


@WIDTH
@MEMBERS
def test_nan_reaches_the_outputs_of_its_group(members, width):
    c = 2 * max(width, members)
    op = convolution(1, c, (5, 12), members=members)
    x, weights = normal(*op.bottom), normal(c, members, 3, 3, seed=1)
    x[0, members, 2, 6] = np.nan

    y = convolved(op, x, weights, None, Tuning(width))

    lost = np.zeros(op.top, bool)
    lost[0, members : 2 * members, 1:4, 5:8] = True
    np.testing.assert_array_equal(np.isnan(y), lost)


@WIDTH
def test_images_in_c_order_are_refused(width):
    op = convolution(2, 3 * width, (9, 16))
    plain = Images.in_order(op.bottom)
    strips = plan_depthwise(op, op.bottom, op.top, Tuning(width=width))

    for x, y in ((plain, last(op.top)), (last(op.bottom), plain)):
        with pytest.raises(ValueError, match="channels side by side"):
            DepthwiseConvolution(strips, x, y)
        with pytest.raises(ValueError, match="channels side by side"):
            DepthwiseGradients(strips, (x, y, x))


@WIDTH
def test_nan_reaches_the_windows_that_see_it_and_no_others(width):
    op = convolution(1, width, (5, 12))
    x, weights = normal(*op.bottom), normal(width, 1, 3, 3, seed=1)
    x[0, 3, 2, 6] = np.nan

    y = convolved(op, x, weights, None, Tuning(width=width), RELU)

    lost = np.zeros(op.top, bool)
    lost[0, 3, 1:4, 5:8] = True
    np.testing.assert_array_equal(np.isnan(y), lost)


@WIDTH
@THEN
def test_what_is_no_number_is_rectified_as_layers_do(then, width):
    op = convolution(1, width, (4, 20))
    offsets = np.zeros(width, np.float32)
    offsets[:3] = NOT_NUMBERS

    x, weights = normal(*op.bottom), normal(width, 1, 3, 3)
    y = convolved(op, x, weights, offsets, Tuning(width=width), then)

    want = rectified(then, offsets[:3])
    np.testing.assert_array_equal(y[0, :3], np.broadcast_to(want[:, None, None], (3, 4, 20)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"group": 16, "top": (1, 16 * 5, 9, 9)}, "up to 4 outputs"),
        ({"group": 16, "top": (1, 16 * 4, 9, 9), "kernel": (6, 6)}, f"{MOST_TAPS} taps"),
        ({"group": 12, "top": (1, 24, 9, 9), "bottom": (1, 12, 9, 9)}, "up to 4 outputs"),
        ({"group": 8, "top": (1, 32, 9, 9)}, "as many outputs"),
        ({"group": 1}, "groups of up to 16"),
        (
            {"bottom": (1, 96, 9, 9), "top": (1, 96, 9, 9), "group": 32},
            "groups of up to 16",
        ),
        (
            {"bottom": (1, 64, 9, 9), "top": (1, 64, 9, 9), "group": 2},
            "groups of up to 16",
        ),
        (
            {"bottom": (1, 20, 9, 9), "top": (1, 20, 9, 9), "group": 5},
            "groups of up to 16",
        ),
        ({"kernel": (12, 11)}, f"{MOST_TAPS} taps"),
        ({"kernel": (6, 6), "group": 4}, f"{MOST_TAPS} taps"),
        ({"kernel": (3, 3), "dilation": (1, 99)}, "take up to 320"),
    ],
)
def test_other_convolutions_are_declined(change, why):
    fields = {**vars(convolution(1, 16, (9, 9))), **change}
    op = ops.Conv(**fields)

    with pytest.raises(Declined, match=why):
        plan_depthwise(op, op.bottom, op.top, Tuning(width=16))


@pytest.mark.parametrize(("members", "lowering"), [(1, "depthwise"), (4, "grouped")])
def test_it_can_be_switched_off(members, lowering):
    op = convolution(1, 16, (9, 9), members=members)

    with pytest.raises(Declined, match="off"):
        plan_depthwise(op, op.bottom, op.top, Tuning(width=16, without=frozenset({lowering})))


def test_code_names_the_instructions():
    op = convolution(1, 16, (9, 9))

    assert plan_depthwise(op, op.bottom, op.top, Tuning(width=8)).code == "depthwise llvm:avx2"
    assert plan_depthwise(op, op.bottom, op.top, Tuning(width=16)).code == "depthwise llvm:avx512"
    op = convolution(1, 16, (9, 9), members=4)
    assert plan_depthwise(op, op.bottom, op.top, Tuning(width=8)).code == "grouped llvm:avx2"


def gradients(op, x, dy, filters, tuning, *, back=False, **asked):
    """Return the gradients of input, weights and bias; None for those that are not asked for."""
    strips = plan_depthwise(op, op.bottom, op.top, tuning, back=back)
    c, x = x.shape[1], filled(x, strips.channels)
    dy = filled(dy, strips.channels * strips.group.outputs)
    images = last(x.shape), last(dy.shape), last(x.shape)
    run = DepthwiseGradients(strips, images, **asked)
    run.update(filters.reshape(-1))
    dx, weight, bias = aligned(x.size), aligned(filters.size), aligned(op.top[1])
    dx[:] = np.nan
    asks = {"data": True, "weights": True, "bias": False} | asked
    sources = in_memory(x, images[0]), in_memory(dy, images[1])
    for _ in range(2):  # what was summed before is gone
        run(
            *sources, weight if asks["weights"] else None, bias if asks["bias"] else None,
            dx if asks["data"] else None,
        )  # fmt: skip
    return (
        out_of_memory(dx, images[0])[:, :c] if asks["data"] else None,
        weight.reshape(filters.shape) if asks["weights"] else None,
        bias if asks["bias"] else None,
    )


def operands(op):
    weights = normal(op.top[1], op.bottom[1] // op.group, *op.kernel, seed=1)
    return normal(*op.bottom), normal(*op.top, seed=2), weights


BACK = pytest.mark.parametrize("window", [
    {}, {"kernel": (5, 3), "pad": (1, 2)}, {"kernel": (3, 3), "pad": (2, 0), "dilation": (2, 1)},
    {"pad": (3, 4)}, {"stride": (2, 2)}, {"kernel": (5, 5), "pad": (2, 2), "stride": (2, 3)},
    {"kernel": (2, 1), "pad": (0, 0), "stride": (3, 2)}, {"kernel": (7, 7), "pad": (3, 3)},
    {"kernel": (3, 3), "pad": (2, 4), "stride": (2, 3), "dilation": (2, 2)},
    {"kernel": (1, 3), "pad": (0, 4), "stride": (1, 3)},
], ids=str)  # fmt: skip


@WIDTH
@SIZES
@BACK
def test_the_gradients_of_input_and_filters(window, size, width):
    op = convolution(2, 2 * width + 1, size, **window)
    if min(op.top) < 1:
        pytest.skip("the window does not fit")
    x, dy, weights = operands(op)

    dx, weight, _ = gradients(op, x, dy, weights, Tuning(width))

    expect_gradients(op, (x, dy, weights), dx, weight)


@WIDTH
@MEMBERS
@pytest.mark.parametrize("window", [
    {}, {"stride": (2, 2)}, {"kernel": (5, 3), "pad": (1, 2), "stride": (2, 3)},
    {"kernel": (3, 3), "pad": (2, 4), "stride": (2, 3), "dilation": (2, 2)},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("size", [(5, 3), (6, 17), (14, 14)], ids=str)
def test_the_gradients_of_groups(size, window, members, width):
    expect_all_gradients(
        convolution(2, 3 * max(width, members), size, members=members, **window), width
    )


def expect_all_gradients(op, width):
    """Compare them with the definition; without each other, they have the same bits."""
    x, dy, weights = operands(op)

    dx, weight, bias = gradients(op, x, dy, weights, Tuning(width, threads=2), bias=True)

    expect_gradients(op, (x, dy, weights), dx, weight)
    expect_close(bias, dy.astype(float).sum(axis=(0, 2, 3)))
    data = gradients(op, x, dy, weights, Tuning(width), weights=False)
    own = gradients(op, x, dy, weights, Tuning(width), data=False, bias=True)
    for got, want in zip((data[0], *own[1:]), (dx, weight, bias), strict=True):
        np.testing.assert_array_equal(got, want)


@WIDTH
@pytest.mark.parametrize("outputs", [2, 3, 4])
@pytest.mark.parametrize("window", [
    {}, {"stride": (2, 2)}, {"kernel": (4, 4), "stride": (2, 2)},
    {"kernel": (3, 2), "pad": (2, 4), "stride": (2, 3), "dilation": (2, 2)},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("size", [(5, 3), (6, 17)], ids=str)
def test_a_channel_may_have_several_outputs(size, window, outputs, width):
    c = 2 * width + 3
    op = convolution(2, c, size, outputs=outputs, **window)
    (x, _, weights), offsets = operands(op), normal(c * outputs, seed=3)

    y = convolved(op, x, weights, offsets, Tuning(width, threads=2), RELU)

    want = correlated(x, weights, op.pad, op.group, op.stride, op.dilation)
    expect_close(y, np.maximum(want + offsets[:, None, None], 0))
    expect_all_gradients(op, width)


def expect_gradients(op, given, dx, weight):
    x, dy, weights = given
    where = op.pad, op.group, op.stride, op.dilation
    expect_close(weight, correlated_slopes(x, dy, op.kernel, *where))
    expect_input_gradient(op, dy, weights, dx)


def expect_input_gradient(op, dy, weights, dx):
    where = op.pad, op.group, op.stride, op.dilation
    for seed in range(3, 6):  # a small step along any input changes the outputs by as much
        step = normal(*op.bottom, seed=seed)
        y = correlated(step, weights, *where)
        scale = np.linalg.norm(dx) * np.linalg.norm(step)
        assert abs((dy * y).sum() - (dx.astype(float) * step).sum()) <= 1e-6 * scale


LARGE = [
    {"kernel": (16, 16), "stride": (8, 8), "pad": (4, 4)},
    {"kernel": (32, 8), "stride": (16, 3), "pad": (0, 9)},
    {"kernel": (12, 13), "stride": (12, 13), "pad": (1, 2), "dilation": (1, 2)},
]
"""Windows that only the gradient of the input takes."""


@WIDTH
@pytest.mark.parametrize("members", [1, 4])
@pytest.mark.parametrize("window", LARGE, ids=str)
@pytest.mark.parametrize("size", [(33, 32), (35, 70)], ids=str)
def test_large_windows_with_strides_have_a_gradient_of_the_input(size, window, members, width):
    op = convolution(2, 3 * width, size, members=members, **window)
    x, dy, weights = operands(op)

    dx, _, _ = gradients(op, x, dy, weights, Tuning(width, threads=2), back=True, weights=False)

    expect_input_gradient(op, dy, weights, dx)
    with pytest.raises(Declined, match=f"{MOST_TAPS} taps"):
        plan_depthwise(op, op.bottom, op.top, Tuning(width))


@WIDTH
@pytest.mark.parametrize("window", [{}, {"stride": (2, 2)}, {"pad": (4, 4)}, {"stride": (1, 9)}])
def test_the_gradient_of_the_bias(window, width):
    op = convolution(3, 2 * width + 3, (11, 12), **window)
    x, dy, weights = operands(op)

    dx, weight, bias = gradients(op, x, dy, weights, Tuning(width), bias=True)

    expect_close(bias, dy.astype(float).sum(axis=(0, 2, 3)))
    without = gradients(op, x, dy, weights, Tuning(width))
    np.testing.assert_array_equal(dx, without[0])
    np.testing.assert_array_equal(weight, without[1])


@WIDTH
@pytest.mark.parametrize("window", [{}, {"stride": (2, 2)}])
def test_gradients_may_be_asked_for_one_by_one(window, width):
    op = convolution(2, width, (7, 9), **window)
    x, dy, weights = operands(op)

    dx, weight, bias = gradients(op, x, dy, weights, Tuning(width), bias=True)
    data = gradients(op, x, dy, weights, Tuning(width), weights=False)
    own = gradients(op, x, dy, weights, Tuning(width), data=False, bias=True)

    np.testing.assert_array_equal(data[0], dx)
    np.testing.assert_array_equal(own[1], weight)
    np.testing.assert_array_equal(own[2], bias)


@WIDTH
@pytest.mark.parametrize("window", [{}, {"stride": (1, 2)}])
def test_threads_change_no_bit_of_the_gradients(window, width):
    op = convolution(3, 5 * width, (24, 31), **window)
    x, dy, weights = operands(op)

    one = gradients(op, x, dy, weights, Tuning(width), bias=True)

    for threads in (2, 3, 7, 40):
        other = gradients(op, x, dy, weights, Tuning(width, threads), bias=True)
        for got, want in zip(other, one, strict=True):
            np.testing.assert_array_equal(got, want)


def test_windows_that_reach_no_pixel_of_a_phase_leave_zeros_whatever_the_gradient_is():
    op = convolution(1, 16, (5, 5), kernel=(1, 1), pad=(0, 0), stride=(2, 2))
    dy = np.full(op.top, np.inf, np.float32)
    x, _, weights = operands(op)

    dx, _, _ = gradients(op, x, dy, np.ones_like(weights), Tuning(16))

    want = np.zeros(op.bottom, np.float32)
    want[:, :, ::2, ::2] = np.inf
    np.testing.assert_array_equal(dx, want)
