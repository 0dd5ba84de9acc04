"""Pointwise convolution of images that are normalised on the way, on arrays, against numpy."""

import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from rectifiers import NOT_NUMBERS, THEN, rectified
from stages import WIDTH, normal

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, RELU
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.pointwise import (
    PointwiseConvolution,
    PointwiseSchedule,
    check_norm_gain,
    limits_pay,
    plan_pointwise,
)
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined

THREADS = pytest.mark.parametrize("threads", [1, 2, 3, 7])
SIZES = pytest.mark.parametrize("size", [(2, 7), (5, 3), (7, 7), (9, 13)], ids=str)
ONES, NONE = (1, 1), (0, 0)


def convolution(n, c, m, size, **changes):
    shape = {"kernel": ONES, "stride": ONES, "pad": NONE, "dilation": ONES, "group": 1} | changes
    return ops.Conv(
        dtype="float32", bottom=(n, c, *size), top=(n, m, *size), axis=1, bias=True, **shape
    )


def with_gaps(shape, gap):
    """Return images with their channels last, and some elements between the pixels."""
    _, c, h, w = shape
    column = c + gap
    return Images(shape, h * w * column, w * column, column, c)


def pixels_of(memory, images):
    """Return a view of the pixels in memory. Shape: (N * H * W, C)."""
    n, c, h, w = images.shape
    return memory.reshape(n * h * w, images.column_stride)[:, :c]


def in_memory(x, images, empty=np.nan):
    n, _, h, w = images.shape
    memory = aligned(n * h * w * images.column_stride)
    memory[:] = empty
    pixels_of(memory, images)[...] = x.transpose(0, 2, 3, 1).reshape(n * h * w, -1)
    return memory


class Case:
    """A convolution with numbers for everything that it takes."""

    def __init__(self, n, c, m, size):
        self.op = convolution(n, c, m, size)
        self.x, self.weights = normal(n, c, *size), normal(m, c, seed=1)
        self.factors, self.shifts = normal(c, seed=2), normal(c, seed=3)
        self.offsets = normal(m, seed=4)

    def run(self, tuning, then=NOTHING, *, gaps=(0, 0), normed=True):
        """Return the output's pixels, and what lies between them. Shapes: (P, M), (P, gap)."""
        parts = plan_pointwise(self.op, self.op.bottom, self.op.top, tuning)
        x, y = (
            with_gaps(shape, gap)
            for shape, gap in zip((self.op.bottom, self.op.top), gaps, strict=True)
        )
        norm = (self.factors, self.shifts) if normed else None
        run = PointwiseConvolution(parts, x, y, norm, then)
        run.update(self.weights.reshape(-1))
        target = aligned(parts.pixels * y.column_stride)
        target[:] = np.nan
        run(in_memory(self.x, x), target, self.offsets, aligned(run.scratch_size))
        rows, channels = target.reshape(parts.pixels, -1), y.shape[1]
        return rows[:, :channels], rows[:, channels:]

    def wanted(self, then=NOTHING, *, normed=True):
        """Return what the definition gives, in double precision."""
        x = self.x.astype(float).transpose(0, 2, 3, 1).reshape(-1, self.x.shape[1])
        x = np.maximum(x * self.factors + self.shifts, 0) if normed else x
        y = x @ self.weights.T + self.offsets
        return rectified(then, y)


def expect_close(got, want):
    assert np.abs(got - want).max() <= 5e-6 * max(1, np.abs(want).max())


def always(width, threads=1):
    return Tuning(width, threads=threads, always=frozenset({"pointwise"}))


@WIDTH
@THREADS
@SIZES
@THEN
def test_the_output_is_that_of_the_definition(then, size, threads, width):
    case = Case(2, 2 * width + 5, 5 * width + 3, size)

    y, _ = case.run(always(width, threads), then)

    expect_close(y, case.wanted(then))


@WIDTH
@THREADS
@THEN
def test_pixels_may_be_taken_as_they_are(then, threads, width):
    case = Case(2, 2 * width + 5, 5 * width + 3, (9, 13))

    y, between = case.run(always(width, threads), then, gaps=(width, width), normed=False)

    expect_close(y, case.wanted(then, normed=False))
    assert np.isnan(between).all()


@WIDTH
@pytest.mark.parametrize("more", [0, 1, 2])
@pytest.mark.parametrize("vectors", [1, 3, 4, 9])
def test_any_number_of_channels_will_do(vectors, more, width):
    case = Case(1, vectors * width + more, 2 * width + more, (3, 7))

    y, _ = case.run(always(width))

    expect_close(y, case.wanted())


@WIDTH
@THREADS
def test_pixels_may_lie_apart_and_nothing_is_written_between_them(threads, width):
    case = Case(2, 3 * width, 3 * width, (4, 9))

    y, between = case.run(always(width, threads), gaps=(2 * width, 5))

    expect_close(y, case.wanted())
    assert np.isnan(between).all()


@WIDTH
def test_threads_change_no_bits(width):
    case = Case(1, 3 * width, 6 * width, (7, 7))

    one, *others = (case.run(always(width, threads))[0] for threads in (1, 2, 3, 8, 64))

    for other in others:
        np.testing.assert_array_equal(one, other)


@WIDTH
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_what_a_rectifier_makes_nan_reaches_all_outputs_of_its_pixel(value, width):
    case = Case(1, 2 * width, 2 * width, (4, 5))
    case.x[0, 3, 2, 1] = value
    case.factors[3] = 1

    y, _ = case.run(always(width), RELU)

    assert np.isnan(y[11]).all()
    assert np.isfinite(np.delete(y, 11, axis=0)).all()


@WIDTH
@THEN
@pytest.mark.parametrize("normed", [False, True])
def test_what_is_no_number_is_rectified_as_layers_do(normed, then, width):
    case = Case(1, width, 2 * width, (4, 5))
    case.offsets[:3] = NOT_NUMBERS

    y, _ = case.run(always(width), then, normed=normed)

    want = rectified(then, case.offsets[:3])
    np.testing.assert_array_equal(y[:, :3], np.broadcast_to(want, (20, 3)))
    assert np.isfinite(y[:, 3:]).all()


@WIDTH
def test_weights_may_change(width):
    case = Case(1, 2 * width, 2 * width, (4, 5))
    parts = plan_pointwise(case.op, case.op.bottom, case.op.top, always(width))
    x, y = with_gaps(case.op.bottom, 0), with_gaps(case.op.top, 0)
    run = PointwiseConvolution(parts, x, y, (case.factors, case.shifts))
    target, scratch = aligned(parts.pixels * y.shape[1]), aligned(run.scratch_size)
    run.update(case.weights.reshape(-1))

    case.weights *= 2
    run.update(case.weights.reshape(-1))
    run(in_memory(case.x, x), target, case.offsets, scratch)

    expect_close(pixels_of(target, y), case.wanted())


@WIDTH
def test_images_in_blocks_are_refused(width):
    case = Case(1, 2 * width, 2 * width, (4, 5))
    parts = plan_pointwise(case.op, case.op.bottom, case.op.top, always(width))
    blocks = Images.in_blocks(case.op.bottom, width)

    with pytest.raises(ValueError, match="pixels follow evenly"):
        PointwiseConvolution(parts, blocks, with_gaps(case.op.top, 0), (case.factors, case.shifts))


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8, 30, 64])
@pytest.mark.parametrize("size", [(7, 7), (14, 14), (56, 56)], ids=str)
def test_all_threads_have_work_and_none_much_more(size, threads):
    parts = PointwiseSchedule((1, 64, *size), (1, 128, *size), Tuning(16, threads=threads))

    of_pixels, of_filters = parts.divided

    assert of_pixels * of_filters <= threads
    least = math.ceil(parts.pixels / parts.rows) * len(parts.panels) / threads
    blocks = math.ceil(math.ceil(parts.pixels / of_pixels) / parts.rows)
    assert blocks * math.ceil(len(parts.panels) / of_filters) <= 2 * math.ceil(least)


def reason(op, tuning):
    with pytest.raises(Declined) as declined:
        plan_pointwise(op, op.bottom, op.top, tuning)
    return str(declined.value)


@pytest.mark.parametrize(
    "changes",
    [{"kernel": (1, 3)}, {"stride": (2, 2)}, {"pad": (1, 1)}, {"group": 2}],
    ids=lambda changes: next(iter(changes)),
)
def test_other_windows_are_declined(changes):
    op = convolution(1, 32, 64, (14, 14), **changes)

    assert "windows of one pixel" in reason(op, always(16))


@pytest.mark.parametrize(("c", "m", "size"), [(8, 64, (9, 9)), (64, 16, (9, 9)), (64, 64, (3, 4))])
def test_few_channels_or_pixels_are_declined(c, m, size):
    assert "takes 14 pixels or more" in reason(convolution(1, c, m, size), always(16))


def test_it_is_taken_where_it_pays():
    tuning, op = Tuning(16, threads=2), convolution(1, 320, 128, (28, 28))

    assert plan_pointwise(op, op.bottom, op.top, tuning).divided == (2, 1)
    assert "filters of 2048 KiB" in reason(convolution(1, 1024, 512, (14, 14)), tuning)
    assert "49 pixels" in reason(convolution(1, 64, 128, (7, 7)), tuning)
    assert "is off" in reason(op, replace(tuning, without=frozenset({"pointwise"})))
    assert "no kernels" in reason(op, replace(tuning, width=0))


@pytest.mark.parametrize(
    ("c", "m", "size", "pays"),
    [
        (32, 192, (28, 28), True),
        (24, 144, (56, 56), True),
        (32, 40, (56, 56), False),
        (96, 576, (7, 7), False),
    ],
    ids=["all fit", "filters nearly fit", "few filters", "pixels do not fit"],
)
def test_limits_pay_where_little_is_computed_in_vain(c, m, size, pays):
    parts = PointwiseSchedule((1, c, *size), (1, m, *size), Tuning(16))

    assert limits_pay(parts) is pays
    assert limits_pay(replace(parts, tuning=always(16)))


@pytest.mark.parametrize(
    ("tuning", "size", "pays"),
    [
        (Tuning(8), (28, 28), False),
        (Tuning(8), (160, 160), True),
        (Tuning(16), (28, 28), True),
        (always(8), (28, 28), True),
    ],
    ids=["in a cache", "larger than a cache", "many rows at a time", "always"],
)
def test_pixels_in_a_cache_are_normalised_by_themselves_on_avx2(tuning, size, pays):
    parts = PointwiseSchedule((1, 64, *size), (1, 128, *size), tuning)

    with nullcontext() if pays else pytest.raises(Declined):
        check_norm_gain(parts)
