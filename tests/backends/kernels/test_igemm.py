"""Convolutions and their gradients by implicit GEMM, on arrays, against numpy."""

import math
from functools import partial

import numpy as np
import pytest
from expect_error import expect_error
from narrow_values import kept
from rectifiers import NOT_NUMBERS, THEN, rectified
from stages import WIDTH, normal

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels import igemm
from demitasse.backends.kernels.epilogue import NOTHING, RELU
from demitasse.backends.kernels.igemm import LENGTH, WIDEST_IN_PLACE, plan_igemm
from demitasse.backends.kernels.igemm_convolution import (
    filter_gradient,
    igemm_forward,
    igemm_input_gradient,
)
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.target import has_bf16
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined

THREADS = pytest.mark.parametrize("threads", [1, 2, 3, 7])

BF16 = pytest.mark.skipif(not has_bf16(16), reason="the processor has no AVX512_BF16")

WINDOWS = {
    "pixels": {},
    "pixels with strides": {"stride": (2, 2)},
    "3x3": {"kernel": (3, 3), "pad": (1, 1)},
    "3x3 with strides": {"kernel": (3, 3), "pad": (1, 1), "stride": (2, 2)},
    "strides beyond windows": {"kernel": (2, 1), "stride": (3, 2)},
    "5x2, dilated": {"kernel": (5, 2), "pad": (4, 0), "dilation": (2, 3), "stride": (1, 2)},
    "far beyond the image": {"kernel": (3, 3), "pad": (5, 4), "stride": (2, 1)},
    "groups": {"kernel": (3, 3), "pad": (1, 1), "group": 3},
    "pixels in groups": {"group": 2},
}  # fmt: skip


def convolution(n, c, m, size, **changes):
    how = {"kernel": (1, 1), "stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "group": 1}
    how |= changes
    top = [
        (length + 2 * pad - gap * (taps - 1) - 1) // step + 1
        for length, taps, step, pad, gap in zip(
            size, how["kernel"], how["stride"], how["pad"], how["dilation"], strict=True
        )
    ]
    return ops.Conv(
        dtype="float32", bottom=(n, c, *size), top=(n, m, *top), axis=1, bias=True, **how
    )


class Numbers:
    """Images with their channels last and a gap between pixels, which stays NaN."""

    def __init__(self, values, gap=0):
        n, c, h, w = values.shape
        column = c + gap
        self.images = Images(values.shape, h * w * column, w * column, column)
        self.memory = aligned(n * h * w * column)
        self.memory[:] = np.nan
        self.values[...] = values

    @property
    def values(self):
        n, c, h, w = self.images.shape
        return self.memory.reshape(n, h, w, -1)[..., :c].transpose(0, 3, 1, 2)

    def expect_gaps(self):
        c = self.images.shape[1]
        assert np.isnan(self.memory.reshape(-1, self.images.column_stride)[:, c:]).all()


class Case:
    """A convolution with numbers for everything that it takes."""

    def __init__(self, n, c, m, size, gap=0, **changes):
        self.op = op = convolution(n, c, m, size, **changes)
        self.x, self.y = Numbers(normal(*op.bottom), gap), Numbers(np.full(op.top, np.nan), gap)
        self.weights = normal(m, c // op.group, *op.kernel, seed=1)
        self.offsets, self.dy = normal(m, seed=4), Numbers(normal(*op.top, seed=5), gap)
        self.added = None

    def add(self):
        gap = self.y.images.column_stride - self.op.top[1]
        self.added = Numbers(normal(*self.op.top, seed=6), gap)

    def plan(self, tuning):
        return plan_igemm(self.op, self.op.bottom, self.op.top, tuning)

    def forward(self, tuning, then=NOTHING):
        adds = self.added is not None
        ends = self.x.images, self.y.images
        run = igemm_forward(self.plan(tuning), *ends, then, adds=adds)
        run.update(self.weights.reshape(-1))
        added = None if self.added is None else self.added.memory
        run(self.x.memory, self.y.memory, self.offsets, added, scratch(run))
        self.y.expect_gaps()
        return self.y.values.copy()

    def input_gradient(self, tuning):
        dx = Numbers(np.full(self.op.bottom, np.nan), gap=3)
        run = igemm_input_gradient(self.plan(tuning), dx.images, self.dy.images)
        run.update(self.weights.reshape(-1))
        run(self.dy.memory, dx.memory, None, None, scratch(run))
        dx.expect_gaps()
        return dx.values.copy()

    def filter_gradient(self, tuning, *, bias=True):
        ends = self.x.images, self.dy.images
        run = filter_gradient(self.plan(tuning), *ends, self.op.kernel, bias=bias)
        memory, group = aligned(self.weights.size), self.op.group
        memory[:] = np.nan
        offsets = np.full(len(self.offsets), np.nan, np.float32) if bias else None
        run(self.x.memory, self.dy.memory, memory, offsets, scratch(run))
        shape = group, len(self.weights) // group, *self.weights.shape[1:]
        strides = [4 * stride for stride in run.strides]
        found = np.lib.stride_tricks.as_strided(memory, shape, strides)
        return found.reshape(self.weights.shape), offsets

    def taps(self, read):
        """Yield each tap, and the values that it reads. Shape: (N, C, OH, OW)."""
        op = self.op
        x = read(self.x.values).astype(float)
        (top, left), (h, w) = op.pad, op.top[2:]
        room = [(0, 0), (0, 0), (top, top + op.stride[0]), (left, left + op.stride[1])]
        padded = np.pad(x, room)
        for i, j in np.ndindex(*op.kernel):
            rows = op.dilation[0] * i + op.stride[0] * np.arange(h)
            columns = op.dilation[1] * j + op.stride[1] * np.arange(w)
            yield (i, j), (rows, columns), padded[:, :, rows[:, None], columns]

    def by_group(self, array, axis):
        return np.split(array.astype(float), self.op.group, axis)

    def wanted(self, then=NOTHING, read=np.asarray):
        """Return the outputs; windows and filters are rounded by ``read``."""
        weights = read(self.weights)
        y = sum(
            np.concatenate(
                [
                    np.einsum("mc,nchw->nmhw", w, x)
                    for w, x in zip(
                        self.by_group(weights[..., i, j], 0),
                        self.by_group(part, 1),
                        strict=True,
                    )
                ],
                axis=1,
            )
            for (i, j), _, part in self.taps(read)
        )
        added = 0 if self.added is None else self.added.values
        return rectified(then, y + self.offsets[:, None, None] + added)

    def wanted_gradients(self):
        op, dy = self.op, self.by_group(self.dy.values, 1)
        (top, left), (h, w) = op.pad, op.bottom[2:]
        dx = np.zeros((*op.bottom[:2], h + 2 * top + op.stride[0], w + 2 * left + op.stride[1]))
        dw = np.zeros(self.weights.shape)
        for (i, j), (rows, columns), part in self.taps(np.asarray):
            xs, ws = self.by_group(part, 1), self.by_group(self.weights[..., i, j], 0)
            dw[..., i, j] = np.concatenate(
                [np.einsum("nmhw,nchw->mc", d, x) for d, x in zip(dy, xs, strict=True)]
            )
            dx[:, :, rows[:, None], columns] += np.concatenate(
                [np.einsum("nmhw,mc->nchw", d, w) for d, w in zip(dy, ws, strict=True)], axis=1
            )
        return dx[:, :, top : top + h, left : left + w], dw, np.sum(self.dy.values, (0, 2, 3))

    def expect_all_passes(self, tuning):
        """Compare the output and all gradients with those of the definition."""
        expect_close(self.forward(tuning), self.wanted())
        dx, dw, db = self.wanted_gradients()
        expect_close(self.input_gradient(tuning), dx)
        for got, want in zip(self.filter_gradient(tuning), (dw, db), strict=True):
            expect_close(got, want)


def scratch(run):
    memory = aligned(run.scratch_size)
    memory[:] = np.nan
    return memory


def expect_close(got, want, sums=None):
    """Compare results; ``sums`` are what a rectifier may have made smaller."""
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 5e-6 * max(1, np.abs(want if sums is None else sums).max())


def windows(names=WINDOWS):
    return pytest.mark.parametrize("windows", [WINDOWS[name] for name in names], ids=list(names))


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
