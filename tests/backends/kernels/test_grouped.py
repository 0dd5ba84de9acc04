"""Convolution of small groups of channels on arrays, against the definition."""

import numpy as np
import pytest
from correlate import correlated
from stages import WIDTH, in_memory, normal, out_of_memory

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.grouped import group_parts_of
from demitasse.backends.kernels.grouped.convolution import GroupedConvolution
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
GROUPS = pytest.mark.parametrize("channels", [2, 4, 8, "vector"])


def convolution(n, groups, each, size, *, kernel=(3, 3), stride=(1, 1), pad=(1, 1),
                dilation=(1, 1)):  # fmt: skip
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    out = [(s + 2 * p - r) // t + 1 for s, p, r, t in zip(size, pad, reach, stride, strict=True)]
    reads, writes = each
    x, y = (n, groups * reads, *size), (n, groups * writes, *out)
    return ops.Conv("float32", x, y, 1, kernel, stride, pad, dilation, group=groups, bias=True)


def convolved(op, x, weights, offsets, tuning, *, relu=False, slopes=None):
    parts = group_parts_of(op, op.bottom, op.top, tuning)
    source, target = (Images.in_blocks(shape, shape[1]) for shape in (op.bottom, op.top))
    run = GroupedConvolution(parts, source, target, relu=relu)
    run.update(weights.reshape(-1))
    if slopes is not None:
        run.take_slopes(slopes)
    memory = aligned(int(np.prod(op.top)))
    memory[:] = np.nan
    run(in_memory(x, source), memory, offsets)
    return out_of_memory(memory, target)


def operands(op):
    weights = normal(op.top[1], op.bottom[1] // op.group, *op.kernel, seed=1)
    return normal(*op.bottom), weights, normal(op.top[1], seed=2)


def expect_close(got, want):
    assert np.abs(got - want).max() <= 5e-6 * max(1, np.abs(want).max())


@WIDTH
@GROUPS
@WINDOWS
@SIZES
def test_the_output_is_that_of_the_definition(size, window, channels, width):
    each = width if channels == "vector" else channels
    op = convolution(2, -(-2 * width // each) + 1, (each, each), size, **window)
    if min(op.top) < 1:
        pytest.skip("the window does not fit")
    x, weights, offsets = operands(op)

    y = convolved(op, x, weights, offsets, Tuning(width=width))

    want = correlated(x, weights, op.pad, op.group, op.stride, op.dilation)
    expect_close(y, want + offsets[:, None, None])


@WIDTH
def test_a_group_may_be_read_by_several_vectors_of_filters(width):
    op = convolution(2, 3, (5, 2 * width), (7, 9))
    x, weights, offsets = operands(op)

    y = convolved(op, x, weights, offsets, Tuning(width=width))

    expect_close(y, correlated(x, weights, op.pad, op.group) + offsets[:, None, None])


@WIDTH
@pytest.mark.parametrize("options", [
    {"threads": 2}, {"threads": 3}, {"threads": 40}, {"group_filter_bytes": 1},
    {"group_filter_bytes": 1, "threads": 3}, {"cached_bytes": 0},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("each", [4, "vector"])
def test_neither_threads_nor_parts_nor_what_is_fetched_change_a_bit(each, options, width):
    each = width if each == "vector" else each
    op = convolution(2, 5 * width // each, (each, each), (5, 19), stride=(2, 1))
    x, weights, offsets = operands(op)

    one = convolved(op, x, weights, offsets, Tuning(width=width))
    other = convolved(op, x, weights, offsets, Tuning(width=width, **options))

    np.testing.assert_array_equal(other, one)


def test_large_filters_are_divided_into_parts_and_large_images_fetched():
    op = convolution(1, 32, (8, 8), (28, 28))

    few, many = (
        group_parts_of(op, op.bottom, op.top, Tuning(width=16, **sizes))
        for sizes in ({}, {"group_filter_bytes": 1 << 14, "cached_bytes": 1 << 20})
    )

    assert (few.parts, few.fetches) == (1, False)
    assert (many.parts, many.fetches) == (5, True)  # of 72 KiB


@WIDTH
def test_what_is_below_zero_is_rectified_or_multiplied_with_slopes(width):
    op = convolution(1, width // 2, (4, 4), (4, 9))
    x, weights, offsets = operands(op)
    slopes = normal(op.top[1], seed=3)

    plain = convolved(op, x, weights, offsets, Tuning(width=width))
    relu = convolved(op, x, weights, offsets, Tuning(width=width), relu=True)
    sloped = convolved(op, x, weights, offsets, Tuning(width=width), slopes=slopes)

    np.testing.assert_array_equal(relu, np.maximum(plain, 0))
    np.testing.assert_array_equal(sloped, np.where(plain > 0, plain, plain * slopes[:, None, None]))


@WIDTH
@pytest.mark.parametrize("each", [4, "vector"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_its_group_and_windows_and_no_others(bad, each, width):
    each = width if each == "vector" else each
    op = convolution(1, 2 * width // each, (each, each), (5, 12))
    x, weights, offsets = operands(op)
    x[0, each + 1, 2, 6] = bad

    y = convolved(op, x, np.abs(weights), offsets, Tuning(width=width), relu=True)

    lost = np.zeros(op.top, bool)
    lost[0, each : 2 * each, 1:4, 5:8] = True
    np.testing.assert_array_equal(~np.isfinite(y), lost)
    np.testing.assert_array_equal(y[lost], bad)


@pytest.mark.parametrize(
    ("groups", "each", "change"),
    [
        (1, (16, 16), {}),
        (32, (1, 1), {}),
        (4, (32, 32), {}),
        (4, (12, 12), {}),
        (8, (4, 8), {}),
        (2, (4, 4), {}),
        (8, (4, 4), {"kernel": (3, 12)}),
        (8, (4, 4), {"kernel": (3,)}),
    ],
)
def test_other_convolutions_are_declined(groups, each, change):
    op = ops.Conv(**{**vars(convolution(1, groups, each, (9, 9))), **change})

    with pytest.raises(Declined, match="groups of 2 to 16 channels"):
        group_parts_of(op, op.bottom, op.top, Tuning(width=16))


def test_windows_that_see_many_pixels_are_declined():
    op = convolution(1, 8, (4, 4), (9, 200), dilation=(1, 60))

    with pytest.raises(Declined, match="pixels at a time; kernels take up to 320"):
        group_parts_of(op, op.bottom, op.top, Tuning(width=16, threads=2))


def test_it_can_be_switched_off():
    op = convolution(1, 8, (4, 4), (9, 9))

    with pytest.raises(Declined, match="off"):
        group_parts_of(op, op.bottom, op.top, Tuning(width=16, grouped="never"))


def test_code_names_the_instructions():
    op = convolution(1, 8, (4, 4), (9, 9))

    assert group_parts_of(op, op.bottom, op.top, Tuning(width=8)).code == "grouped llvm:avx2"
    assert group_parts_of(op, op.bottom, op.top, Tuning(width=16)).code == "grouped llvm:avx512"
