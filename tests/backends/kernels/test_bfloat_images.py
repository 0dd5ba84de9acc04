"""Kernels that read and write images of bfloat16, beside the same kernels in float32."""

import numpy as np
import pytest
from convolution_case import convolution
from narrow_values import kept
from stages import normal

from demitasse.backends.arrays import aligned
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.copies import ConvertingCopy
from demitasse.backends.kernels.channel_affine import channel_factors
from demitasse.backends.kernels.depthwise import DepthwiseConvolution, plan_depthwise
from demitasse.backends.kernels.elementwise import Elementwise
from demitasse.backends.kernels.epilogue import RELU
from demitasse.backends.kernels.igemm import plan_igemm
from demitasse.backends.kernels.igemm_convolution import igemm_forward
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.target import has_bf16
from demitasse.backends.kernels.pooling import Pooling
from demitasse.backends.kernels.separable import SeparableConvolution, plan_separable
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.ops import Pool
from demitasse.backends.storage import narrowed

pytestmark = pytest.mark.skipif(not has_bf16(16), reason="the processor has no AVX512_BF16")

STORED = pytest.mark.parametrize("stored", ["x", "y", "xy"])
TUNING = Tuning(16, 2)


def images(shape, *, bf16):
    return Images.channels_last(shape, bf16=bf16)


def memory(values, *, bf16=False):
    """Values with their channels last, as a kernel's argument."""
    last = np.moveaxis(values, 1, -1).reshape(-1)
    array = aligned(-(-last.size // (1 + bf16)))
    if bf16:
        array.view(np.uint16)[...] = narrowed(last, "bfloat16")
    else:
        array[...] = last
    return array


def expect_alike(run, x, top, stored):
    """Compare ``run(x, y, source, target)`` of bfloat16 with what it writes in float32."""
    values = kept(x, "bfloat16")
    found = {}
    for kind in ("", stored):
        reads, writes = "x" in kind, "y" in kind
        size = int(np.prod(top))
        target = aligned(size // (1 + writes))
        target[...] = np.nan
        ends = images(x.shape, bf16=reads), images(top, bf16=writes)
        run(*ends, memory(values, bf16=reads), target)
        found[kind] = target
    want = found[""]
    if "y" in stored:
        np.testing.assert_array_equal(found[stored].view(np.uint16), narrowed(want, "bfloat16"))
    else:
        np.testing.assert_array_equal(found[stored], want)


@STORED
@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize("channels", [16, 48, 208])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad", "top"),
    [
        ((13, 17), (3, 3), (2, 2), (0, 0), (6, 8)),
        ((7, 7), (7, 7), (1, 1), (0, 0), (1, 1)),
        ((11, 30), (3, 3), (1, 1), (1, 1), (11, 30)),
        ((9, 10), (1, 1), (2, 3), (0, 0), (5, 4)),
    ],
)
def test_windows_are_pooled(size, kernel, stride, pad, top, channels, method, stored):
    shape, pooled = (2, channels, *size), (2, channels, *top)
    op = Pool(
        "float32", method, shape, pooled, kernel, stride, pad, tops=1, train=False,
        counts_pads=True,
    )  # fmt: skip

    def run(x, y, source, target):
        Pooling(op, x, y, TUNING).forward(source, target)

    expect_alike(run, normal(*shape), pooled, stored)


@STORED
@pytest.mark.parametrize("channels", [16, 48, 208])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
def test_channels_are_convolved_by_themselves(stride, channels, stored):
    op = convolution(
        2, channels, channels, (9, 14), kernel=(3, 3), pad=(1, 1), stride=stride, group=channels
    )
    weights, offsets = normal(channels, 1, 3, 3, seed=1), normal(channels, seed=2)

    def run(x, y, source, target):
        conv = DepthwiseConvolution(plan_depthwise(op, op.bottom, op.top, TUNING), x, y, RELU)
        conv.update(weights.reshape(-1))
        conv(source, target, offsets)

    expect_alike(run, normal(*op.bottom), op.top, stored)


@STORED
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    ("channels", "filters", "window"),
    [
        (32, 48, {}),
        (96, 32, {"stride": (2, 3)}),
        (64, 96, {"group": 2}),
        (1024, 16, {}),
        (48, 80, {"kernel": (3, 3), "pad": (1, 1)}),
        (64, 64, {"kernel": (3, 2), "stride": (2, 1), "dilation": (1, 2), "group": 4}),
    ],
)
def test_channels_are_products(channels, filters, window, adds, stored):
    op = convolution(2, channels, filters, (9, 14), **window)
    tuning = Tuning(16, 2, bf16=True)
    weights = normal(filters, channels // op.group, *op.kernel, seed=1)
    offsets, other = normal(filters, seed=2), kept(normal(*op.top, seed=3), "bfloat16")

    def run(x, y, source, target):
        schedule = plan_igemm(op, op.bottom, op.top, tuning)
        conv = igemm_forward(schedule, x, y, RELU, adds=adds)
        conv.update(weights.reshape(-1))
        added = memory(other, bf16=y.bf16) if adds else None
        conv(source, target, offsets, added, aligned(conv.scratch_size))

    expect_alike(run, normal(*op.bottom), op.top, stored)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_sums_of_several_blocks_read_pairs(kernel):
    op = convolution(1, 1280, 32, (5, 6), kernel=kernel)
    tuning, weights = Tuning(16, 2, bf16=True), normal(32, 1280, *kernel, seed=1)

    def run(x, y, source, target):
        conv = igemm_forward(plan_igemm(op, op.bottom, op.top, tuning), x, y)
        conv.update(weights.reshape(-1))
        conv(source, target, None, None, aligned(conv.scratch_size))

    expect_alike(run, normal(*op.bottom), op.top, "x")


@STORED
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("channels", [32, 96])
def test_depthwise_and_pointwise_convolutions_run_together(channels, adds, stored):
    each = convolution(2, channels, channels, (17, 9), kernel=(3, 3), pad=(1, 1), group=channels)
    pixels = convolution(2, channels, 64, (17, 9))
    tuning = Tuning(16, 2, bf16=True, always=frozenset({"separable"}))
    filters, weights = normal(channels, 1, 3, 3, seed=1), normal(64, channels, seed=2)
    before, after = normal(channels, seed=3), normal(64, seed=4)
    other = kept(normal(*pixels.top, seed=5), "bfloat16")

    def run(x, y, source, target):
        blocks = plan_separable(each, pixels, tuning)
        conv = SeparableConvolution(blocks, x, y, (RELU, RELU), adds=adds)
        conv.depthwise.update(filters.reshape(-1))
        conv.update(weights.reshape(-1))
        added = [memory(other, bf16=y.bf16)] * adds
        conv(source, target, before, after, *added, aligned(conv.scratch_size))

    expect_alike(run, normal(*each.bottom), pixels.top, stored)


@STORED
@pytest.mark.parametrize("channels", [16, 48, 208])
def test_channels_have_factors_and_offsets(channels, stored):
    factors, offsets = normal(channels, seed=1), normal(channels, seed=2)

    def run(x, y, source, target):
        channel_factors(x, TUNING, y)(source, factors, offsets, target)

    expect_alike(run, normal(2, channels, 9, 14), (2, channels, 9, 14), stored)


@pytest.mark.parametrize("name", ["sum", "rectified_sum"])
@pytest.mark.parametrize(
    "bf16", [(True, True, False), (False, True, True), (False, False, True), (True, True, True)]
)
@pytest.mark.parametrize("count", [16, 4096, 48 * 1031])
def test_images_are_added(count, bf16, name):
    arrays = [kept(normal(count, seed=seed), "bfloat16") for seed in range(2)]
    want, got = aligned(count), aligned(count // (1 + bf16[-1]))

    Elementwise([(name, ())], 2, count, TUNING)(*arrays, want)
    sources = [memory(one[None], bf16=half) for one, half in zip(arrays, bf16, strict=False)]
    Elementwise([(name, ())], 2, count, TUNING, bf16)(*sources, got)

    if bf16[-1]:
        np.testing.assert_array_equal(got.view(np.uint16), narrowed(want, "bfloat16"))
    else:
        np.testing.assert_array_equal(got, want)


SHAPE = 2, 32, 5, 7


def in_layout(values, layout):
    """Values in C order or with their channels last."""
    if layout.plain:
        return values.reshape(-1).copy()
    return memory(values, bf16=layout.bf16)


LAYOUTS = [
    layouts.plain(SHAPE), layouts.innermost(SHAPE, 1), layouts.rounded(layouts.innermost(SHAPE, 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("here", "there"), [(a, b) for a in LAYOUTS for b in LAYOUTS if a.bf16 != b.bf16]
)
def test_layouts_are_converted(here, there):
    values = normal(*SHAPE)
    if here.bf16:
        values = kept(values, "bfloat16")
    target = np.full(there.size, np.nan, np.float32)

    ConvertingCopy(here, there, TUNING)(in_layout(values, here), target)

    np.testing.assert_array_equal(target, in_layout(values, there))


def test_channels_that_fill_no_vectors_stay_in_float32():
    last = layouts.innermost((2, 40, 5, 7), 1)

    assert layouts.rounded(last) is last
    assert layouts.rounded(layouts.plain(SHAPE)) is layouts.plain(SHAPE)
    half = layouts.rounded(layouts.innermost(SHAPE, 1))
    assert half.bf16
    assert half.size * 2 == layouts.plain(SHAPE).size
    assert layouts.stored(half, bf16=False) is layouts.innermost(SHAPE, 1)
