"""A depthwise convolution and the pointwise one behind it, on arrays, against the definition."""

import math
from dataclasses import replace

import numpy as np
import pytest
from correlate import correlated
from narrow_values import kept
from rectifiers import CLIP, NOT_NUMBERS, RELU6, THEN, rectified
from stages import WIDTH, in_memory, normal, out_of_memory

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise import DepthwiseConvolution, plan_depthwise
from demitasse.backends.kernels.epilogue import NOTHING, RELU
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.language.target import has_bf16
from demitasse.backends.kernels.separable import SeparableConvolution, plan_separable
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined

THREADS = pytest.mark.parametrize("threads", [1, 2, 3])
WINDOWS = pytest.mark.parametrize(
    "window",
    [
        {},
        {"stride": (2, 2)},
        {"kernel": (5, 5), "pad": (2, 2), "stride": (1, 2)},
        {"kernel": (3, 3), "pad": (2, 2), "dilation": (2, 2)},
        {"kernel": (5, 3), "pad": (3, 1), "dilation": (1, 2)},
        {"kernel": (2, 2), "pad": (0, 0)},
    ],
    ids=["3x3", "strides", "5x5", "dilation", "rows of padding", "no padding"],
)
SIZES = pytest.mark.parametrize("size", [(30, 13), (21, 34)], ids=str)


def convolutions(n, c, m, size, *, kernel=(3, 3), stride=(1, 1), pad=(1, 1), dilation=(1, 1)):
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    out = [(s + 2 * p - r) // t + 1 for s, p, r, t in zip(size, pad, reach, stride, strict=True)]
    x, between, y = (n, c, *size), (n, c, *out), (n, m, *out)
    each = ops.Conv("float32", x, between, 1, kernel, stride, pad, dilation, group=c, bias=True)
    one = (1, 1)
    return each, ops.Conv("float32", between, y, 1, one, one, (0, 0), one, group=1, bias=True)


def whole(shape):
    """Return images with their channels last."""
    return Images.channels_last(shape)


class Case:
    """Two convolutions with numbers for everything that they take."""

    def __init__(self, n, c, m, size, **window):
        self.each, self.pixels = convolutions(n, c, m, size, **window)
        self.x = normal(*self.each.bottom)
        self.windows, self.weights = normal(c, 1, *self.each.kernel, seed=1), normal(m, c, seed=2)
        self.offsets = normal(c, seed=3), normal(m, seed=4)

    def run(self, tuning, then=(RELU, RELU), other=None):
        """Return the output. Shape: (N, M, OH, OW)."""
        blocks = plan_separable(self.each, self.pixels, tuning)
        x, y = whole(self.x.shape), whole(self.pixels.top)
        run = SeparableConvolution(blocks, x, y, then, adds=other is not None)
        run.depthwise.update(self.windows.reshape(-1))
        run.update(self.weights.reshape(-1))
        target, scratch = aligned(math.prod(self.pixels.top)), aligned(run.scratch_size)
        target[:], scratch[:] = np.nan, np.nan
        added = self.offsets if other is None else (*self.offsets, in_memory(other, y))
        run(in_memory(self.x, x), target, *added, scratch)
        return out_of_memory(target, y)

    def wanted(self, then=(RELU, RELU), other=0, read=np.asarray):
        """Return what the definition gives, in double precision; factors of products are read."""
        op, (first, second) = self.each, self.offsets
        y = correlated(self.x, self.windows, op.pad, op.group, op.stride, op.dilation)
        y = y + first[:, np.newaxis, np.newaxis]
        y = read(rectified(then[0], y)).astype(float)
        z = np.einsum("mc,nchw->nmhw", read(self.weights), y) + second[:, np.newaxis, np.newaxis]
        return rectified(then[1], z + other)


def always(width, threads=1, **changes):
    return Tuning(width, threads=threads, always=frozenset({"separable"}), **changes)


def expect_close(got, want):
    assert np.abs(got - want).max() <= 1e-5 * max(1, np.abs(want).max())


@WIDTH
@THREADS
@WINDOWS
@SIZES
def test_the_output_is_that_of_the_definition(size, window, threads, width):
    case = Case(2, 2 * width + 5, 5 * width + 3, size, **window)

    expect_close(case.run(always(width, threads)), case.wanted())


@WIDTH
@pytest.mark.parametrize(
    "then",
    [
        (NOTHING, NOTHING), (RELU, NOTHING), (NOTHING, RELU), (RELU6, NOTHING), (NOTHING, RELU6),
        (CLIP, CLIP), (RELU, RELU6),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("stride", [1, 2])
def test_rectifiers_are_there_where_they_are_asked_for(stride, then, width):
    case = Case(1, 2 * width, 2 * width, (29, 30), stride=(stride, stride))

    expect_close(case.run(always(width), then), case.wanted(then))


@WIDTH
@THEN
def test_what_is_no_number_is_rectified_as_layers_do(then, width):
    case = Case(1, width, 2 * width, (9, 14))
    case.offsets[1][:3] = NOT_NUMBERS

    y = case.run(always(width), (RELU, then))

    want = rectified(then, NOT_NUMBERS)[:, np.newaxis, np.newaxis]
    np.testing.assert_array_equal(y[0, :3], np.broadcast_to(want, (3, 9, 14)))
    assert np.isfinite(y[0, 3:]).all()


@WIDTH
@THEN
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_so_is_what_lies_between(value, then, width):
    case = Case(1, width, 2 * width, (9, 14))
    case.offsets[0][2], case.weights[:, 2] = value, 1

    y = case.run(always(width), (then, NOTHING))

    np.testing.assert_allclose(y, case.wanted((then, NOTHING)), rtol=1e-5, atol=1e-4)


@WIDTH
@pytest.mark.parametrize("c", [1, 3, 260], ids=["a vector", "odd", "many channels"])
@pytest.mark.parametrize("more", [0, 1])
def test_any_number_of_channels_will_do(c, more, width):
    case = Case(1, max(c, width) + more, 2 * width + more, (9, 14))

    expect_close(case.run(always(width)), case.wanted())


@WIDTH
@THREADS
@pytest.mark.parametrize("more", [0, 1, 4, 7])
def test_few_filters_will_do(more, threads, width):
    case = Case(2, 3 * width + 1, width + more, (15, 17))

    expect_close(case.run(always(width, threads)), case.wanted())


@WIDTH
@THREADS
@pytest.mark.parametrize("then", [NOTHING, RELU, RELU6], ids=["nothing", "ReLU", "ReLU6"])
@pytest.mark.parametrize("vectors", [1, 1.5, 2.5, 3, 9])
def test_an_image_may_be_added_before_the_last_rectifier(vectors, then, threads, width):
    case = Case(2, 2 * width, int(vectors * width), (15, 16))
    other, both = normal(*case.pixels.top, seed=7), (RELU, then)

    y = case.run(always(width, threads), both, other=other)

    expect_close(y, case.wanted(both, other))


@WIDTH
def test_a_sum_has_the_bits_of_a_sum_behind(width):
    case, nothing = Case(1, width, 3 * width, (15, 16)), (RELU, NOTHING)
    other = normal(*case.pixels.top, seed=7)
    other[0, :3, 0, 0] = NOT_NUMBERS

    y = case.run(always(width), nothing, other=other)

    np.testing.assert_array_equal(y, case.run(always(width), nothing) + other)


def test_an_image_to_add_is_refused_where_none_is_added():
    case = Case(1, 16, 32, (15, 16))
    blocks = plan_separable(case.each, case.pixels, always(16))
    x, y = whole(case.each.bottom), whole(case.pixels.top)
    image, scratch = aligned(math.prod(case.pixels.top)), aligned(1 << 20)

    for adds, added in ((False, (*case.offsets, image)), (True, case.offsets)):
        run = SeparableConvolution(blocks, x, y, adds=adds)
        with pytest.raises(TypeError, match="image to add"):
            run(in_memory(case.x, x), image, *added, scratch)


@WIDTH
@pytest.mark.parametrize("columns", range(14, 28))
def test_any_number_of_pixels_may_be_left(columns, width):
    case = Case(1, width + 1, 2 * width + 1, (3, columns), kernel=(1, 1), pad=(0, 0))
    tuning = always(width, buffer_bytes=1)

    expect_close(case.run(tuning), case.wanted())


@WIDTH
def test_threads_and_blocks_change_no_bits(width):
    case = Case(3, 2 * width, 3 * width, (14, 14))

    one, *others = (
        case.run(always(width, threads, buffer_bytes=noted))
        for threads in (1, 2, 5)
        for noted in (1 << 20, 20_000, 1)
    )

    for other in others:
        np.testing.assert_array_equal(one, other)


@WIDTH
def test_what_lies_between_has_the_bits_of_the_first_convolution_alone(width):
    c = 2 * width
    case = Case(1, c, c, (10, 15))
    case.weights, case.offsets = np.eye(c, dtype=np.float32), (case.offsets[0], np.zeros(c, "f"))
    alone = DepthwiseConvolution(
        plan_depthwise(case.each, case.each.bottom, case.each.top, Tuning(width)),
        whole(case.each.bottom), whole(case.each.top), RELU,
    )  # fmt: skip
    alone.update(case.windows.reshape(-1))
    between = aligned(math.prod(case.each.top))
    alone(in_memory(case.x, whole(case.each.bottom)), between, case.offsets[0])

    y = case.run(always(width))

    np.testing.assert_array_equal(y, out_of_memory(between, whole(case.each.top)))


@WIDTH
def test_nan_reaches_all_outputs_of_the_pixels_that_see_it(width):
    case = Case(1, width, 2 * width, (9, 14))
    case.x[0, 3, 2, 6] = np.nan

    y = case.run(always(width))

    lost = np.zeros(y.shape, bool)
    lost[0, :, 1:4, 5:8] = True
    np.testing.assert_array_equal(np.isnan(y), lost)


@WIDTH
def test_weights_may_change(width):
    case = Case(1, width, 2 * width, (9, 14))
    run = SeparableConvolution(
        plan_separable(case.each, case.pixels, always(width)),
        whole(case.each.bottom), whole(case.pixels.top), (RELU, RELU),
    )  # fmt: skip
    target, scratch = aligned(math.prod(case.pixels.top)), aligned(run.scratch_size)

    for factor in (1, -2):
        case.windows *= factor
        case.weights *= factor
        run.depthwise.update(case.windows.reshape(-1))
        run.update(case.weights.reshape(-1))
        run(in_memory(case.x, whole(case.each.bottom)), target, *case.offsets, scratch)

    expect_close(out_of_memory(target, whole(case.pixels.top)), case.wanted())


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("size", [(7, 7), (10, 10), (14, 14), (19, 19), (38, 38), (150, 150)])
@pytest.mark.parametrize("n", [1, 8])
def test_blocks_are_those_of_the_kernel_and_none_is_empty(n, size, threads):
    each, pixels = convolutions(n, 512, 512, size)
    try:
        blocks = plan_separable(each, pixels, always(16, threads))
    except Declined:
        assert n * size[0] < threads
        return

    found = []
    for thread in range(threads):
        begin, end = (n * size[0] * t // threads for t in (thread, thread + 1))
        cuts = [(end - begin) * part // blocks.count for part in range(blocks.count + 1)]
        found += np.diff(cuts).tolist()
    assert blocks.block_rows == found
    assert min(found) > 0


def test_blocks_are_large_where_filters_are_many():
    few, many = (plan_separable(*convolutions(1, 512, m, (38, 38)), always(16)) for m in (32, 1024))

    rows = math.ceil(38 / few.count)
    assert rows * 38 * 512 * 4 < 1.5 * few.depthwise.tuning.buffer_bytes
    assert many.count < few.count


def reason(convolutions, tuning):
    with pytest.raises(Declined) as declined:
        plan_separable(*convolutions, tuning)
    return str(declined.value)


def test_it_is_taken_where_it_pays():
    tuning = Tuning(16, threads=2)
    good = convolutions(1, 64, 128, (28, 28))

    assert plan_separable(*good, tuning).code == "separable llvm:avx512"
    assert plan_separable(*good, replace(tuning, width=8)).code == "separable llvm:avx2"
    assert "divide well" in reason(convolutions(1, 64, 128, (9, 9)), tuning)
    large = convolutions(1, 512, 1024, (2, 2))
    assert "pixels enough for the filters" in reason(large, tuning)
    assert plan_separable(*large, replace(tuning, threads=1))  # nobody else reads them
    assert "a row or more for each thread" in reason(convolutions(1, 64, 128, (1, 7)), tuning)
    assert "up to 1024 channels" in reason(convolutions(1, 1040, 128, (28, 28)), tuning)
    assert "16 or more" in reason(convolutions(1, 64, 12, (28, 28)), tuning)
    assert "is off" in reason(good, replace(tuning, without=frozenset({"separable"})))
    assert "no kernels" in reason(good, replace(tuning, width=0))


def test_other_convolutions_are_declined():
    each, pixels = convolutions(1, 32, 64, (28, 28))

    wide = ops.Conv(**{**vars(pixels), "kernel": (3, 3), "pad": (1, 1)})
    assert "windows of one pixel" in reason((each, wide), always(16))
    joint = ops.Conv(**{**vars(each), "group": 1})
    groups = ops.Conv(**{**vars(each), "group": 8})
    for other in (joint, groups):
        assert "a depthwise convolution" in reason((other, pixels), always(16))


@pytest.mark.parametrize("n", [1, 2])
def test_outputs_in_c_order_are_refused(n):
    each, pixels = convolutions(n, 32, 64, (28, 28))
    blocks = plan_separable(each, pixels, always(16))

    with pytest.raises(ValueError, match="pixels follow evenly"):
        SeparableConvolution(blocks, whole(each.bottom), Images.in_order(pixels.top))


@WIDTH
def test_fewer_threads_than_were_asked_for_do_all_of_it(width, monkeypatch):
    case, run = Case(2, width, 2 * width, (14, 14)), call_recorder.run_kernel
    want = case.run(always(width, 4))

    monkeypatch.setattr(
        call_recorder, "run_kernel", lambda at, words, _, *more: run(at, words, 1, *more)
    )

    np.testing.assert_array_equal(case.run(always(width, 4)), want)


# -- bfloat16 ----------------------------------------------------------------------------------

BF16 = pytest.mark.skipif(not has_bf16(16), reason="the processor has no AVX512_BF16")


def bfloat16(values):
    return kept(values, "bfloat16")


@BF16
@THREADS
@WINDOWS
@pytest.mark.parametrize("channels", [16, 38, 260])
def test_pixels_in_between_are_multiplied_in_bfloat16(channels, window, threads):
    case = Case(2, channels, 83, (30, 13), **window)
    other = normal(*case.pixels.top, seed=6)

    got = case.run(always(16, threads, bf16=True), other=other)

    # a pixel is rounded to float32 before, and may be half way between two neighbours
    want = case.wanted(other=other, read=bfloat16)
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()
    assert np.abs(got - want).mean() <= 2e-5 * np.abs(want).max()


@BF16
def test_not_a_number_stays_in_bfloat16():
    case = Case(1, 32, 48, (9, 14))
    case.x[0, 3, 4, 5], case.x[0, 5, 0, 0] = np.nan, np.inf

    y = case.run(always(16, bf16=True))

    assert np.isnan(y[0, :, 3:6, 4:7]).all()
    assert np.isfinite(y[0, :, 7:]).all()


@BF16
def test_pairs_of_channels_are_needed():
    with pytest.raises(Declined, match="odd"):
        Case(1, 17, 32, (9, 14)).run(always(16, bf16=True))
