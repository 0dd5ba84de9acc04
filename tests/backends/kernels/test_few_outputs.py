"""Convolution of many channels to few on arrays, against the definition."""

import numpy as np
import pytest
from correlate import correlated
from rectifiers import THEN, rectified
from stages import WIDE, WIDTH, in_memory, normal

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, RELU
from demitasse.backends.kernels.few_outputs import NarrowConvolution, plan_few_outputs
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined

WINDOWS = pytest.mark.parametrize(
    "window",
    [
        {},
        {"kernel": (5, 5), "pad": (2, 2), "stride": (2, 1)},
        {"kernel": (9, 9), "pad": (4, 4)},
        {"kernel": (3, 3), "pad": (2, 3), "dilation": (2, 3)},
        {"kernel": (1, 4), "pad": (0, 5), "stride": (1, 3)},
        {"kernel": (2, 1), "pad": (0, 0)},
        {"kernel": (1, 1), "pad": (0, 0)},
    ],
    ids=["3x3", "strides", "9x9", "dilation", "wide padding", "no padding", "pixels"],
)
SIZES = pytest.mark.parametrize("size", [(2, 1), (5, 3), (6, 17), (9, 40)], ids=str)


def convolution(n, c, m, size, *, kernel=(3, 3), stride=(1, 1), pad=(1, 1), dilation=(1, 1)):
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    out = [(s + 2 * p - r) // t + 1 for s, p, r, t in zip(size, pad, reach, stride, strict=True)]
    x, y = (n, c, *size), (n, m, *out)
    return ops.Conv("float32", x, y, 1, kernel, stride, pad, dilation, group=1, bias=True)


def convolved(op, x, weights, offsets, tuning, *, then=NOTHING, slopes=None):
    """Return what the kernel writes, and check that it writes nothing behind it."""
    images = Images.channels_last(op.bottom)
    run = NarrowConvolution(plan_few_outputs(op, op.bottom, op.top, tuning), images, then)
    run.update(weights.reshape(-1))
    if slopes is not None:
        run.take_slopes(slopes)
    size = int(np.prod(op.top))
    memory = aligned(size + 32)
    memory[:size], memory[size:] = np.nan, 7
    run(in_memory(x, images), memory, offsets)
    assert np.all(memory[size:] == 7)
    return memory[:size].reshape(op.top).copy()


def expect_close(got, want):
    assert np.abs(got - want).max() <= 5e-6 * max(1, np.abs(want).max())


@WIDE
@WINDOWS
@SIZES
@pytest.mark.parametrize("maps", [1, 3])
def test_the_output_is_that_of_the_definition(maps, size, window, width):
    c = 3 * width
    op = convolution(2, c, maps, size, **window)
    if min(op.top) < 1:
        pytest.skip("the window does not fit")
    x, weights = normal(*op.bottom), normal(maps, c, *op.kernel, seed=1)
    offsets = normal(maps, seed=2)

    y = convolved(op, x, weights, offsets, Tuning(width=width))

    want = correlated(x, weights, op.pad, 1, op.stride, op.dilation) + offsets[:, None, None]
    expect_close(y, want)


@WIDE
def test_threads_change_no_bit(width):
    op = convolution(2, 2 * width, 3, (5, 21))
    x, weights = normal(*op.bottom), normal(3, 2 * width, 3, 3, seed=1)

    one, *others = (
        convolved(op, x, weights, None, Tuning(width=width, threads=threads))
        for threads in (1, 2, 3, 16)
    )

    for other in others:
        np.testing.assert_array_equal(other, one)


@WIDTH
def test_the_place_in_a_row_changes_no_bit(width):
    op = convolution(1, width, 1, (1, 3 * width), kernel=(1, 3), pad=(0, 0))
    pixels = normal(1, width, 1, 3)
    x = np.tile(pixels, (1, 1, 1, width))
    weights = normal(1, width, 1, 3, seed=1)

    y = convolved(op, x, weights, None, Tuning(width=width))

    assert len(np.unique(y[..., ::3])) == 1


@WIDTH
@THEN
def test_sums_are_rectified_limited_or_multiplied_with_slopes(then, width):
    op = convolution(1, width, 2, (4, 9))
    x, weights, slopes = normal(*op.bottom), normal(2, width, 3, 3, seed=1), np.float32([0.5, -2])

    plain = convolved(op, x, weights, None, Tuning(width=width))
    ended = convolved(op, x, weights, None, Tuning(width=width), then=then)
    sloped = convolved(op, x, weights, None, Tuning(width=width), slopes=slopes)

    np.testing.assert_allclose(ended, rectified(then, plain), rtol=4e-7 if then.curve else 0)
    np.testing.assert_array_equal(sloped, np.where(plain > 0, plain, plain * slopes[:, None, None]))


@WIDTH
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_the_windows_that_see_it_and_no_others(bad, width):
    op = convolution(1, 2 * width, 1, (5, 40))
    x, weights = normal(*op.bottom), np.abs(normal(1, 2 * width, 3, 3, seed=1))
    x[0, 3, 2, 0], x[0, width + 1, 2, 20], x[0, 0, 2, 39] = bad, bad, bad

    y = convolved(op, x, weights, None, Tuning(width=width), then=RELU)

    lost = np.zeros(op.top, bool)
    for columns in (slice(0, 2), slice(19, 22), slice(38, 40)):
        lost[0, 0, 1:4, columns] = True
    np.testing.assert_array_equal(~np.isfinite(y), lost)
    np.testing.assert_array_equal(y[lost], bad)


@pytest.mark.parametrize(
    "change",
    [
        {"bottom": (1, 24, 9, 9)},
        {"top": (1, 9, 9, 9)},
        {"group": 2},
        {"kernel": (3, 12)},
        {"kernel": (3,)},
    ],
    ids=str,
)
def test_other_convolutions_are_declined(change):
    op = ops.Conv(**{**vars(convolution(1, 32, 8, (9, 9))), **change})

    with pytest.raises(Declined, match="whole vectors of 16 channels to up to 8"):
        plan_few_outputs(op, op.bottom, op.top, Tuning(width=16))


@pytest.mark.parametrize(
    "change",
    [{"kernel": (40, 3)}, {"dilation": (1, 200)}, {"stride": (1, 20), "top": (1, 8, 9, 9)}],
    ids=str,
)
def test_windows_that_see_many_pixels_are_declined(change):
    op = ops.Conv(**{**vars(convolution(1, 32, 8, (9, 9))), **change})

    with pytest.raises(Declined, match="pixels at a time; kernels take up to 320"):
        plan_few_outputs(op, op.bottom, op.top, Tuning(width=16))


def test_it_can_be_switched_off():
    op = convolution(1, 16, 1, (9, 9))
    off = Tuning(width=16, without=frozenset({"few_outputs"}))

    with pytest.raises(Declined, match="off"):
        plan_few_outputs(op, op.bottom, op.top, off)


def test_code_names_the_instructions():
    op = convolution(1, 16, 1, (9, 9))

    assert plan_few_outputs(op, op.bottom, op.top, Tuning(width=8)).code == "narrow llvm:avx2"
    assert plan_few_outputs(op, op.bottom, op.top, Tuning(width=16)).code == "narrow llvm:avx512"
