"""Convolutions and their gradients by implicit GEMM, on arrays, against numpy."""

import math
from functools import partial

import numpy as np
import pytest
from convolution_case import Case, convolution, expect_close, scratch, windows
from expect_error import expect_error
from narrow_values import kept
from rectifiers import NOT_NUMBERS, THEN, rectified
from stages import WIDTH

from demitasse.backends.kernels import igemm
from demitasse.backends.kernels.epilogue import RELU
from demitasse.backends.kernels.igemm import LENGTH, WIDEST_IN_PLACE, ImplicitGemm, plan_igemm
from demitasse.backends.kernels.igemm_convolution import igemm_forward
from demitasse.backends.kernels.language.target import has_bf16
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined

THREADS = pytest.mark.parametrize("threads", [1, 2, 3, 7])

BF16 = pytest.mark.skipif(not has_bf16(16), reason="the processor has no AVX512_BF16")


@WIDTH
@THREADS
@windows()
def test_all_passes_are_those_of_the_definition(windows, threads, width):
    case = Case(2, 6 * (width + 5), 6 * width + 18, (9, 8), **windows)
    tuning = Tuning(width, threads)

    case.expect_all_passes(tuning)


@WIDTH
@windows(["pixels", "3x3 with strides"])
@pytest.mark.parametrize(
    "channels",
    [1, 3, 7, 33, LENGTH, LENGTH + 1, WIDEST_IN_PLACE, 2 * WIDEST_IN_PLACE + 9],
)
@pytest.mark.parametrize("filters", [1, 24, 31, 33, 64, 69])
def test_any_number_of_channels_will_do(filters, channels, windows, width):
    case = Case(1, channels, filters, (5, 7), gap=5, **windows)
    tuning = Tuning(width, 2)

    expect_close(case.forward(tuning), case.wanted())
    dx, dw, _ = case.wanted_gradients()
    expect_close(case.input_gradient(tuning), dx)
    expect_close(case.filter_gradient(tuning, bias=False)[0], dw)


@WIDTH
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("channels", "filters"), [(96, 24), (24, 96), (80, 80), (530, 40)])
@windows(["pixels", "pixels with strides", "3x3", "pixels in groups"])
def test_large_images_are_fetched_and_no_bit_changes(
    windows, channels, filters, threads, width, monkeypatch
):
    case, tuning = Case(2, channels, filters, (15, 14), **windows), Tuning(width, threads)

    def passes(cached_bytes):
        monkeypatch.setattr(igemm, "CACHED_BYTES", cached_bytes)
        return (
            case.forward(tuning), case.input_gradient(tuning), *case.filter_gradient(tuning),
        )  # fmt: skip

    for small, large in zip(passes(1 << 30), passes(0), strict=True):
        np.testing.assert_array_equal(small, large)


@WIDTH
@pytest.mark.parametrize(
    ("kernel", "stride", "size", "products"),
    [
        ((2, 2), (2, 2), (8, 10), 2),
        ((1, 3), (1, 3), (5, 12), 1),
        ((3, 2), (2, 2), (9, 6), 2),
        ((1, 4), (2, 4), (6, 8), 2),
        ((2, 2), (2, 2), (8, 11), 4),  # no window has the last column
        ((2, 3), (2, 2), (8, 11), 4),  # windows overlap
    ],
    ids=str,
)
@pytest.mark.parametrize("channels", [1, 5, 33])
@pytest.mark.parametrize("gap", [0, 3])
def test_columns_of_windows_that_do_not_overlap_are_written_at_once(
    gap, channels, kernel, stride, size, products, width, monkeypatch
):
    case = Case(2, channels, 20, size, kernel=kernel, stride=stride)
    offsets, gemms, run = np.arange(channels, dtype=np.float32), [], ImplicitGemm.__call__
    monkeypatch.setattr(
        ImplicitGemm, "__call__", lambda gemm, *given: gemms.append(gemm) or run(gemm, *given)
    )

    found = case.input_gradient(Tuning(width, 2), gap, offsets)

    expect_close(found, case.wanted_gradients()[0] + offsets[:, None, None])
    assert len(gemms) == (math.prod(stride) if gap else products)


@WIDTH
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (15, 14)], ids=str)
@pytest.mark.parametrize(
    ("channels", "filters"), [(90, 520), (520, 90), (18, 600), (600, 518), (2 * LENGTH + 2, 256)]
)
@windows(["pixels", "pixels with strides", "pixels in groups", "3x3"])
def test_many_filters_have_gradients(windows, channels, filters, size, bias, width):
    case = Case(2, channels, filters, size, gap=2, **windows)
    _, dw, db = case.wanted_gradients()

    weights, offsets = case.filter_gradient(Tuning(width, 3), bias=bias)

    expect_close(weights, dw)
    if bias:
        expect_close(offsets, db)


@WIDTH
@pytest.mark.parametrize("size", [(1, 1), (1, 5), (14, 1), (13, 29), (40, 41)], ids=str)
@windows(["pixels", "3x3"])
def test_any_number_of_pixels_will_do(windows, size, width):
    case = Case(3, 20, 24, size, **windows)
    tuning = Tuning(width, 3)

    case.expect_all_passes(tuning)


@WIDTH
@THEN
@windows(["pixels", "3x3"])
def test_rectifiers_follow(windows, then, width):
    case = Case(2, 2 * width + 5, 5 * width + 3, (9, 13), gap=width, **windows)

    expect_close(case.forward(Tuning(width, 2), then), case.wanted(then), case.wanted())


@WIDTH
@windows(["pixels", "3x3 with strides"])
def test_threads_change_no_bits(windows, width):
    case = Case(2, 3 * width, 6 * width, (9, 7), **windows)

    def passes(threads):
        tuning = Tuning(width, threads)
        return (
            case.forward(tuning), case.input_gradient(tuning), *case.filter_gradient(tuning),
        )  # fmt: skip

    one, *others = map(passes, (1, 2, 3, 8, 64))

    for other in others:
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


@WIDTH
@THEN
def test_what_is_no_number_is_rectified_as_layers_do(then, width):
    case = Case(1, width, 2 * width, (4, 5))
    case.offsets[:3] = NOT_NUMBERS

    y = case.forward(Tuning(width), then)

    want = rectified(then, case.offsets[:3])
    np.testing.assert_array_equal(y[0, :3], np.broadcast_to(want[:, None, None], (3, 4, 5)))
    assert np.isfinite(y[:, 3:]).all()


@WIDTH
def test_nan_of_a_pixel_reaches_the_windows_over_it(width):
    case = Case(1, 2 * width, 2 * width, (6, 5), kernel=(3, 3), pad=(1, 1))
    case.x.values[0, 3, 0, 0] = np.nan

    y = case.forward(Tuning(width), RELU)

    assert np.isnan(y[0, :, :2, :2]).all()
    assert np.isfinite(y[0, :, 2:]).all()
    assert np.isfinite(y[0, :, :, 2:]).all()


@WIDTH
def test_weights_may_change(width):
    case = Case(1, 2 * width, 2 * width + 1, (4, 5))
    run = igemm_forward(case.plan(Tuning(width)), case.x.images, case.y.images)
    run.update(case.weights.reshape(-1))

    case.weights *= 2
    run.update(case.weights.reshape(-1))
    run(case.x.memory, case.y.memory, case.offsets, None, scratch(run))

    expect_close(case.y.values, case.wanted())


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8, 30, 64])
@pytest.mark.parametrize("size", [(7, 7), (14, 14), (56, 56)], ids=str)
def test_all_threads_have_work_and_none_much_more(size, threads):
    parts = Case(1, 64, 128, size).plan(Tuning(16, threads))

    of_pixels, of_filters = parts.divided

    assert of_pixels * of_filters <= threads
    least = math.ceil(parts.pixels / parts.rows) * parts.panels / threads
    tiles = math.ceil(math.ceil(parts.pixels / of_pixels) / parts.rows)
    assert tiles * math.ceil(parts.panels / of_filters) <= 2 * math.ceil(least)


@WIDTH
@pytest.mark.parametrize("size", [(12, 1), (1, 12), (6, 1)])
def test_pixels_of_a_line_that_no_window_reaches_have_no_gradient(size, width):
    taps = {"kernel": (3, 1) if size[0] > 1 else (1, 3), "stride": (2, 2)}

    Case(2, 4, 15, size, **taps).expect_all_passes(Tuning(width, 2))


def test_a_last_panel_of_few_vectors_counts_as_few():
    seven_vectors = Case(8, 1, 100, (40, 100), kernel=(5, 100)).plan(Tuning(16, 2))

    assert seven_vectors.divided == (2, 1)


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("groups", [1, 2, 3, 5, 32])
def test_parts_of_groups_divide_well_among_threads(groups, threads):
    parts = Case(8, 32 * groups, 32 * groups, (28, 28), group=groups).plan(Tuning(16, threads))

    count = groups * math.prod(parts.divided)

    assert math.ceil(count / threads) * threads <= 1.05 * count


@WIDTH
@pytest.mark.parametrize("taps", [{}, {"kernel": (3, 3), "pad": (1, 1), "stride": (2, 2)}], ids=str)
def test_groups_of_large_images_compute_the_definition(taps, width):
    case = Case(2, 120, 120, (40, 40), group=15, **taps)

    case.expect_all_passes(Tuning(width, 2))


def test_of_equal_divisions_the_one_that_reads_least_is_taken():
    wide, narrow = (
        Case(1, channels, filters, (7, 7)).plan(Tuning(16, 2)).divided
        for channels, filters in ((64, 1024), (1024, 32))
    )

    assert wide == (1, 2)
    assert narrow == (2, 1)


def test_other_convolutions_are_declined():
    op = convolution(1, 32, 64, (14, 14))
    axes = dict.fromkeys(("stride", "dilation"), (1,) * 4) | {"pad": (0,) * 4}
    deep = convolution(1, 32, 64, (2, 2, 2, 2), kernel=(1,) * 4, **axes)

    for other, tuning in (
        (deep, Tuning(16)),
        (op, Tuning(16, without=frozenset({"igemm"}))),
        (op, Tuning(0)),
    ):
        with expect_error(Declined):
            plan_igemm(other, other.bottom, other.top, tuning)


@WIDTH
@THEN
@windows(["pixels", "3x3 with strides", "groups"])
@pytest.mark.parametrize("filters", [12, 96])
def test_images_are_added_before_rectifiers(filters, windows, then, width):
    case = Case(2, 3 * width, filters, (9, 13), gap=5, **windows)
    case.add()

    expect_close(case.forward(Tuning(width, 2), then), case.wanted(then), case.wanted())


# -- bfloat16 ----------------------------------------------------------------------------------


bfloat16 = partial(kept, kind="bfloat16")


def in_bf16(threads=1):
    return Tuning(16, threads, bf16=True)


@BF16
@THREADS
@windows()
@pytest.mark.parametrize("adds", [False, True])
def test_products_of_bfloat16_are_summed_in_float32(adds, windows, threads):
    case = Case(2, 6 * 21, 6 * 19, (9, 8), **windows)
    if adds:
        case.add()

    expect_close(case.forward(in_bf16(threads), RELU), case.wanted(RELU, bfloat16))


@BF16
@windows(["pixels", "3x3 with strides"])
@pytest.mark.parametrize("channels", [1, 2, 3, 7, 15, 16, 33, 2 * LENGTH, 2 * LENGTH + 1, 2100])
@pytest.mark.parametrize("filters", [1, 24, 31, 33, 64, 69])
def test_any_number_of_channels_is_in_pairs_of_bfloat16(filters, channels, windows):
    case = Case(1, channels, filters, (5, 7), gap=5, **windows)

    expect_close(case.forward(in_bf16(2)), case.wanted(read=bfloat16))


@BF16
def test_bfloat16_has_no_subnormal_numbers_and_keeps_the_others():
    case = Case(1, 32, 32, (1, 5))
    case.offsets[:] = 0
    case.weights[...] = np.eye(32, dtype=np.float32)[..., None, None]
    large, tiny = np.float32(3.4e38), np.float32(1e-39)
    case.x.values[0, 0, 0] = [np.nan, np.inf, -np.inf, large, -large]
    case.x.values[0, 1:, 0] = 0.0
    case.x.values[0, 1, 0] = [1.0, -2.0, tiny, -tiny, 2.0**-126]

    alone = Case(1, 32, 32, (1, 5))
    alone.offsets[:], alone.weights[...] = 0, case.weights
    alone.x.values[0, 0, 0] = case.x.values[0, 1, 0]
    alone.x.values[0, 1:, 0] = 0.0

    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(
            case.forward(in_bf16())[0, 0, 0], [np.nan, np.inf, -np.inf, np.inf, -np.inf]
        )
    np.testing.assert_array_equal(alone.forward(in_bf16())[0, 0, 0], [1, -2, 0, 0, 2.0**-126])


@BF16
@windows(["pixels", "3x3 with strides"])
def test_threads_change_no_bits_of_bfloat16(windows):
    case = Case(2, 48, 96, (9, 7), **windows)

    one, *others = (case.forward(in_bf16(threads)) for threads in (1, 2, 3, 8, 64))

    for other in others:
        np.testing.assert_array_equal(one, other)


@BF16
def test_the_code_is_named_after_its_instructions():
    case = Case(1, 32, 32, (4, 5))

    assert case.plan(in_bf16()).code == "igemm llvm:avx512_bf16"
    assert case.plan(Tuning(16)).code == "igemm llvm:avx512"
