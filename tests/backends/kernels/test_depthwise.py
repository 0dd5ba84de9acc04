"""Depthwise convolution on arrays, against the definition."""

import numpy as np
import pytest
from correlate import correlated
from rectifiers import NOT_NUMBERS, THEN, rectified
from stages import WIDTH, in_memory, normal, out_of_memory

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise import plan_depthwise
from demitasse.backends.kernels.depthwise.convolution import DepthwiseConvolution
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
    ],
    ids=["3x3", "strides", "5x5", "dilation", "wide padding", "no padding"],
)
SIZES = pytest.mark.parametrize("size", [(1, 2), (5, 3), (6, 17), (20, 29)], ids=str)


def convolution(n, c, size, *, kernel=(3, 3), stride=(1, 1), pad=(1, 1), dilation=(1, 1)):
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    out = [(s + 2 * p - r) // t + 1 for s, p, r, t in zip(size, pad, reach, stride, strict=True)]
    x, y = (n, c, *size), (n, c, *out)
    return ops.Conv("float32", x, y, 1, kernel, stride, pad, dilation, group=c, bias=True)


def convolved(op, x, weights, offsets, blocks, tuning, then=NOTHING):
    strips = plan_depthwise(op, op.bottom, op.top, tuning)
    source, target = (
        Images.in_blocks(shape, block)
        for shape, block in zip((op.bottom, op.top), blocks, strict=True)
    )
    run = DepthwiseConvolution(strips, source, target, then)
    run.update(weights.reshape(-1))
    memory = aligned(int(np.prod(op.top)))
    memory[:] = np.nan
    run(in_memory(x, source), memory, offsets)
    return out_of_memory(memory, target)


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
    y = convolved(op, x, weights, offsets, (c, c), tuning, then)

    want = correlated(x, weights, op.pad, c, op.stride, op.dilation) + offsets[:, None, None]
    expect_close(y, rectified(then, want))


@WIDTH
@THREADS
@pytest.mark.parametrize("blocks", [(1, 3), (3, 1), (1, 1)], ids=str)
def test_input_and_output_may_lie_in_blocks_of_channels(blocks, threads, width):
    c = 3 * width
    op = convolution(2, c, (9, 16))
    x, weights = normal(*op.bottom), normal(c, 1, 3, 3, seed=1)

    sizes = [count * width for count in blocks]
    y = convolved(op, x, weights, None, sizes, Tuning(width=width, threads=threads))

    expect_close(y, correlated(x, weights, op.pad, c))


@WIDTH
@WINDOWS
@SIZES
def test_what_is_fetched_for_later_changes_no_bit(size, window, width):
    op = convolution(2, 2 * width, size, **window)
    if min(op.top) < 1:
        pytest.skip("the window does not fit")
    x, weights = normal(*op.bottom), normal(2 * width, 1, *op.kernel, seed=1)

    fetching, plain = (
        convolved(op, x, weights, None, (2 * width,) * 2, Tuning(width=width, cached_bytes=cached))
        for cached in (0, 1 << 30)
    )

    np.testing.assert_array_equal(fetching, plain)


def test_pixels_are_fetched_of_large_images_and_where_blocks_become_pixels():
    op = convolution(1, 32, (9, 9))
    blocks, whole = (Images.in_blocks(op.bottom, block) for block in (16, 32))
    few, many = (
        plan_depthwise(op, op.bottom, op.top, Tuning(width=16, cached_bytes=cached))
        for cached in (0, 1 << 20)
    )

    assert few.fetches(whole, whole)
    assert not many.fetches(whole, whole)
    assert not many.fetches(blocks, blocks)
    assert many.fetches(blocks, whole)


@WIDTH
def test_nan_reaches_the_windows_that_see_it_and_no_others(width):
    op = convolution(1, width, (5, 12))
    x, weights = normal(*op.bottom), normal(width, 1, 3, 3, seed=1)
    x[0, 3, 2, 6] = np.nan

    y = convolved(op, x, weights, None, (width, width), Tuning(width=width), RELU)

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
    y = convolved(op, x, weights, offsets, (width, width), Tuning(width=width), then)

    want = rectified(then, offsets[:3])
    np.testing.assert_array_equal(y[0, :3], np.broadcast_to(want[:, None, None], (3, 4, 20)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"group": 16, "top": (1, 32, 9, 9)}, "a group of its own"),
        ({"group": 1}, "a group of its own"),
        ({"kernel": (6, 6)}, "25 taps"),
        ({"kernel": (1, 3), "dilation": (1, 9)}, "16 columns"),
    ],
)
def test_other_convolutions_are_declined(change, why):
    fields = {**vars(convolution(1, 16, (9, 9))), **change}
    op = ops.Conv(**fields)

    with pytest.raises(Declined, match=why):
        plan_depthwise(op, op.bottom, op.top, Tuning(width=16))


def test_it_can_be_switched_off():
    op = convolution(1, 16, (9, 9))

    with pytest.raises(Declined, match="off"):
        plan_depthwise(op, op.bottom, op.top, Tuning(width=16, without=frozenset({"depthwise"})))


def test_code_names_the_instructions():
    op = convolution(1, 16, (9, 9))

    assert plan_depthwise(op, op.bottom, op.top, Tuning(width=8)).code == "depthwise llvm:avx2"
    assert plan_depthwise(op, op.bottom, op.top, Tuning(width=16)).code == "depthwise llvm:avx512"
