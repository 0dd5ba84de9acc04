"""Convolutions in bfloat16 by AMX, on arrays, against numpy."""

import math
from dataclasses import replace

import numpy as np
import pytest
from convolution_case import Case, convolution, expect_close, scratch, windows
from narrow_values import kept
from rectifiers import THEN

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels import amx_convolution, amx_schedule
from demitasse.backends.kernels.amx_convolution import AmxConvolution, AmxInputGradient
from demitasse.backends.kernels.amx_schedule import (
    plan_amx,
    plan_amx_product,
    plan_phases,
    plan_steps,
)
from demitasse.backends.kernels.epilogue import NOTHING, RELU
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.target import has_amx
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined
from demitasse.backends.storage import narrowed, widen_into

AMX = pytest.mark.skipif(not has_amx(16), reason="the processor has no AMX")
THREADS = pytest.mark.parametrize("threads", [1, 2, 3, 7])
STORED = pytest.mark.parametrize("stored", ["", "x", "y", "xy"])


def bfloat16(values):
    return kept(values, "bfloat16")


def tiles(threads=1):
    return Tuning(16, threads, amx=True)


def in_bfloat16(numbers):
    """The images in bfloat16, and their memory."""
    halves = narrowed(numbers.memory, "bfloat16")
    memory = aligned(-(-halves.size // 2))
    memory.view(np.uint16)[: halves.size] = halves
    return replace(numbers.images, bf16=True), memory


def expect_rounded(got, want):
    """Compare results that were rounded to bfloat16."""
    assert (np.abs(got - want) <= 2.0**-8 * np.abs(want) + 1e-5 * np.abs(want).max()).all()


def convolved(case, tuning, then=NOTHING, kind=""):
    """Return the outputs, of images in bfloat16 for x in ``kind``, in bfloat16 for y."""
    x, source = in_bfloat16(case.x) if "x" in kind else (case.x.images, case.x.memory)
    y, target = in_bfloat16(case.y) if "y" in kind else (case.y.images, case.y.memory)
    added = case.added
    if added is not None:
        added = in_bfloat16(added)[1] if "y" in kind else added.memory
    run = AmxConvolution(plan_amx(case.op, case.op.bottom, case.op.top, tuning), x, y, then,
                         adds=added is not None)  # fmt: skip
    run.update(case.weights.reshape(-1))
    memory = [scratch(run)] if run.scratch_size else []
    run(source, target, case.offsets, added, *memory)
    if "y" in kind:
        widen_into(target.view(np.uint16)[: case.y.memory.size], "bfloat16", case.y.memory)
    case.y.expect_gaps()
    return case.y.values.copy()


@AMX
@THREADS
@windows()
@pytest.mark.parametrize("adds", [False, True])
def test_products_of_tiles_are_summed_in_float32(adds, windows, threads):
    case = Case(2, 6 * 21, 6 * 19, (9, 8), **windows)
    if adds:
        case.add()

    expect_close(convolved(case, tiles(threads), RELU), case.wanted(RELU, bfloat16))


@AMX
@windows()
@STORED
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("channels", "filters"), [(96, 96), (48, 288), (192, 48)])
def test_images_are_read_and_written_in_bfloat16(channels, filters, adds, stored, windows):
    case = Case(2, channels * 6, filters * 6, (9, 8), **windows)
    if adds:
        case.add()
        case.added.values[...] = bfloat16(case.added.values)

    got, want = convolved(case, tiles(2), RELU, stored), case.wanted(RELU, bfloat16)

    if "y" in stored:
        expect_rounded(got, want)
        np.testing.assert_array_equal(got, bfloat16(got))
    else:
        expect_close(got, want)


@AMX
@windows(["pixels", "3x3", "3x3 with strides", "5x2, dilated"])
@pytest.mark.parametrize("channels", [1, 2, 3, 5, 7, 15, 16, 24, 31, 32, 33, 48, 200, 1031])
@pytest.mark.parametrize("filters", [16, 24, 33, 64, 69])
def test_any_number_of_channels_will_do(filters, channels, windows):
    case = Case(1, channels, filters, (5, 7), gap=5, **windows)

    expect_close(convolved(case, tiles(2)), case.wanted(read=bfloat16))


@AMX
@pytest.mark.parametrize("kernel", [(1, 7), (7, 7), (5, 5), (3, 11), (2, 4)], ids=str)
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (4, 4), (1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_rows_of_few_channels_are_one_product(channels, stride, kernel):
    case = Case(2, channels, 40, (23, 37), kernel=kernel, stride=stride, pad=(1, 2))

    assert plan_steps(case.op, channels).folded
    expect_close(convolved(case, tiles(2), RELU), case.wanted(RELU, bfloat16))


@AMX
@pytest.mark.parametrize("kernel", [(1, 7), (7, 7), (5, 5), (3, 11), (2, 4)], ids=str)
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (4, 4), (1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(23, 37), (9, 96), (5, 11)], ids=str)
def test_few_channels_are_read_in_c_order(size, channels, stride, kernel):
    case = Case(2, channels, 40, size, kernel=kernel, stride=stride, pad=(1, 5))
    schedule = plan_amx(case.op, case.op.bottom, case.op.top, tiles(2))
    assert schedule.reads_planes

    run = AmxConvolution(schedule, Images.in_order(case.op.bottom), case.y.images, RELU)
    run.update(case.weights.reshape(-1))
    planes = aligned(case.x.values.size)
    planes[...] = case.x.values.reshape(-1)
    run(planes, case.y.memory, case.offsets, None, scratch(run))

    expect_close(case.y.values, case.wanted(RELU, bfloat16))


@AMX
@windows(["pixels", "3x3", "3x3 with strides", "far beyond the image"])
@pytest.mark.parametrize("size", [(1, 1), (1, 5), (14, 1), (13, 29), (40, 41)], ids=str)
@pytest.mark.parametrize("limit", [1 << 10, 20 << 10, 1 << 20])
def test_images_are_divided_into_strips(limit, size, windows, monkeypatch):
    monkeypatch.setattr(amx_schedule, "STRIP_BYTES", limit)
    case = Case(3, 32, 64, size, **windows)

    for kind in ("", "x"):
        for near in (0, 1 << 30):
            monkeypatch.setattr(amx_convolution, "NEAR_BYTES", near)
            expect_close(convolved(case, tiles(3), kind=kind), case.wanted(read=bfloat16))


@AMX
@pytest.mark.parametrize("then", THEN.args[1])
def test_rectifiers_follow(then):
    case = Case(2, 37, 83, (9, 13), gap=16, kernel=(3, 3))

    want = case.wanted(NOTHING, bfloat16)
    expect_close(convolved(case, tiles(2), then), case.wanted(then, bfloat16), want)


@AMX
def test_not_a_number_stays_in_its_windows():
    case = Case(1, 3, 32, (20, 40), kernel=(3, 7), stride=(2, 2), pad=(0, 3))
    case.x.values[0, 1, 10, 20] = np.nan

    y = convolved(case, tiles())[0]

    there = np.zeros(y.shape[1:], bool)
    there[4:6, 9:12] = True  # rows 8 to 12, columns 17 to 23
    np.testing.assert_array_equal(np.isnan(y), np.broadcast_to(there, y.shape))


@AMX
def test_infinities_stay_and_large_numbers_become_infinite():
    case = Case(1, 32, 32, (1, 5))
    case.offsets[:] = 0
    case.weights[...] = np.eye(32, dtype=np.float32)[..., None, None]
    large = np.float32(3.4e38)
    case.x.values[0, 0, 0] = [np.nan, np.inf, -np.inf, large, -large]
    case.x.values[0, 1:, 0] = 0.0

    with np.errstate(invalid="ignore"):
        got = convolved(case, tiles())[0, 0, 0]

    np.testing.assert_array_equal(got, [np.nan, np.inf, -np.inf, np.inf, -np.inf])


@AMX
@STORED
@windows(["pixels", "3x3 with strides"])
def test_threads_change_no_bits(windows, stored):
    case = Case(2, 96, 192, (9, 7), **windows)

    one, *others = (convolved(case, tiles(n), kind=stored) for n in (1, 2, 3, 8, 64))

    for other in others:
        np.testing.assert_array_equal(one, other)


DECONVOLUTIONS = {
    "2x2 apart": {"kernel": (2, 2), "stride": (2, 2)},
    "4x4, overlapping": {"kernel": (4, 4), "stride": (2, 2), "pad": (1, 1)},
    "16x16": {"kernel": (16, 16), "stride": (8, 8), "pad": (4, 4)},
    "5x3": {"kernel": (5, 3), "stride": (2, 1), "pad": (0, 2)},
    "3x3": {"kernel": (3, 3), "pad": (1, 1)},
    "pixels": {},
    "beyond the image": {"kernel": (3, 3), "stride": (2, 3), "pad": (2, 2)},
    "groups": {"kernel": (4, 4), "stride": (2, 2), "pad": (1, 1), "group": 2},
}


@AMX
@THREADS
@STORED
@pytest.mark.parametrize("windows", DECONVOLUTIONS.values(), ids=DECONVOLUTIONS)
@pytest.mark.parametrize(("channels", "filters"), [(32, 64), (64, 96), (96, 32)])
def test_the_gradient_of_the_input(channels, filters, windows, stored, threads):
    case = Case(2, channels, filters, (17, 23), **windows)
    case.dy.values[...], case.weights = bfloat16(case.dy.values), bfloat16(case.weights)
    want = case.wanted_gradients()[0]
    schedule = plan_amx(case.op, case.op.bottom, case.op.top, tiles(threads))
    y, dy = in_bfloat16(case.dy) if "x" in stored else (case.dy.images, case.dy.memory)
    x = Images.channels_last(case.op.bottom, bf16="y" in stored)
    dx = aligned(want.size // (1 + x.bf16))

    run = AmxInputGradient(case.op, plan_phases(schedule), x, y)
    run.update(case.weights.reshape(-1))
    run(dy, dx, None, scratch(run))

    got = np.empty(want.size, np.float32)
    if x.bf16:
        widen_into(dx.view(np.uint16), "bfloat16", got)
    else:
        got[...] = dx
    got = np.moveaxis(got.reshape(2, *want.shape[2:], channels), -1, 1)
    if x.bf16:
        expect_rounded(got, want)
    else:
        expect_close(got, want)


@pytest.mark.parametrize(
    "windows", [{"kernel": (2, 2), "stride": (3, 2)}, {"kernel": (3, 3), "dilation": (2, 2)}]
)
def test_gradients_with_gaps_are_declined(windows):
    op = Case(1, 32, 32, (9, 9), **windows).op

    with pytest.raises(Declined, match="gaps"):
        plan_phases(plan_amx(op, op.bottom, op.top, tiles()))


@AMX
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 33, 100])
@pytest.mark.parametrize("length", [20, 1031, 4096])
def test_rows_times_filters(length, rows):
    case = Case(1, length, 75, (rows, 1))
    schedule = plan_amx_product(rows, length, 75, tiles(2))

    x, y = (Images.channels_last((1, count, rows, 1)) for count in (length, 75))
    run = AmxConvolution(schedule, x, y, RELU)
    run.update(case.weights.reshape(-1))
    run(case.x.memory, case.y.memory, case.offsets, None, scratch(run))

    expect_close(case.y.values, case.wanted(RELU, bfloat16))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (convolution(1, 32, 15, (5, 5)), "filters"),
        (convolution(1, 64 * 16, 64 * 16, (5, 5), group=64), "groups"),
        (convolution(1, 32, 32, (5,), kernel=(1,), stride=(1,), pad=(0,), dilation=(1,)), "axes"),
    ],
)
def test_other_convolutions_are_declined(case, message):
    with pytest.raises(Declined, match=message):
        plan_amx(case, case.bottom, case.top, tiles())


@pytest.mark.parametrize(
    ("channels", "kernel", "count", "width"),
    [
        (3, (7, 7), 7, 28), (3, (11, 11), 22, 22), (3, (3, 3), 3, 12), (1, (5, 5), 5, 10),
        (16, (3, 3), 6, 24), (32, (3, 3), 9, 32), (24, (1, 1), 1, 24), (33, (1, 1), 2, 32),
    ],
)  # fmt: skip
def test_a_window_is_divided_into_few_steps(channels, kernel, count, width):
    steps = plan_steps(convolution(1, channels, 32, (20, 20), kernel=kernel), channels)

    assert (steps.count, steps.width) == (count, width)
    assert steps.width * steps.count >= channels * math.prod(kernel)
