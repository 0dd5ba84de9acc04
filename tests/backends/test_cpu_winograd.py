"""Convolution by minimal filtering against the portable code, which follows the definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowered import (
    ENDS,
    NEEDS_KERNELS,
    WIDTHS,
    build,
    conv,
    expect_same,
    kernels,
    layer,
    net,
    our_kernels,
    outputs_with,
    run,
    tuned,
)
from tilings import KERNELS, STRIDES

from demitasse.backends.cpu.convolutions import NARROW
from demitasse.core.config import settings

pytestmark = NEEDS_KERNELS

CONVOLUTION, GRADIENT = "WinogradConvolution", "WinogradGradient"
"""Kernels of forward passes and of gradients of inputs, and of gradients of weights."""

ROUNDING = 5e-5
"""Of the largest value; the definition's own error is a third of the one here."""


@pytest.fixture(autouse=True, params=WIDTHS, ids="{} floats".format)
def always(request):
    """Take the tiles for every convolution that can be tiled, however small its groups are."""
    with our_kernels(request.param), tuned(without=frozenset({"grouped"})):
        yield


@given(
    n=st.integers(1, 4),
    group=st.integers(1, 2),
    c=st.integers(4, 28),
    m=st.integers(4, 28),
    size=st.tuples(st.integers(5, 13), st.integers(5, 13)),
    kernel=st.sampled_from(KERNELS),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    bias=st.booleans(),
)
def test_both_passes_are_the_portable_ones(n, group, c, m, size, kernel, pad, dilation, bias):
    steps = tuple(step if taps > 1 else 1 for step, taps in zip(dilation, kernel, strict=True))
    reach = tuple(step * (taps - 1) + 1 for step, taps in zip(steps, kernel, strict=True))
    size = tuple(max(side, taps) for side, taps in zip(size, reach, strict=True))
    pad = tuple(
        step * min(zeros, taps - 1) for step, zeros, taps in zip(steps, pad, kernel, strict=True)
    )
    rest = (
        f"group: {group} kernel_h: {kernel[0]} kernel_w: {kernel[1]} "
        f"dilation: {dilation[0]} dilation: {dilation[1]} "
        f"pad_h: {pad[0]} pad_w: {pad[1]} bias_term: {str(bias).lower()}"
    )
    text = net(conv(m * group, rest), shape=(n, c * group, *size))

    planned = expect_same(text, ["c"], rtol=ROUNDING)

    assert (CONVOLUTION in kernels(planned)) == (group * min(c, m) >= NARROW)


@given(
    kind=st.sampled_from(["Convolution", "Deconvolution"]),
    n=st.integers(1, 3),
    c=st.integers(4, 28),
    m=st.integers(4, 28),
    size=st.tuples(st.integers(8, 13), st.integers(8, 13)),
    windows=st.sampled_from(STRIDES),
    bias=st.booleans(),
    slope=st.booleans(),
    threads=st.integers(1, 2),
)
def test_strides_are_phases_of_channels(kind, n, c, m, size, windows, bias, slope, threads):
    named = zip(("kernel", "stride", "pad"), windows, strict=True)
    rest = " ".join(f"{name}_h: {h} {name}_w: {w}" for name, (h, w) in named)
    rest = f"num_output: {m} {rest} bias_term: {str(bias).lower()}"
    rectifier = [layer("p", "PReLU", "c", "c")] if slope else []
    text = net(
        layer("c", kind, "x", "c", f"convolution_param {{ {rest} }}"), *rectifier,
        shape=(n, c, *size),
    )  # fmt: skip

    with settings.override(threads=threads):
        planned = expect_same(text, ["c"], rtol=ROUNDING)
        expect_same(text, phase="TEST", rtol=ROUNDING)

    assert (CONVOLUTION in kernels(planned)) == (min(c, m) >= NARROW)


@pytest.mark.parametrize("windows", [(3, 1, 1), (5, 1, 2)])
@pytest.mark.parametrize("bias", ["true", "false"])
def test_deconvolutions_train_over_tiles(windows, bias):
    size, stride, pad = windows
    rest = f"num_output: 32 kernel_size: {size} stride: {stride} pad: {pad} bias_term: {bias}"
    text = net(
        layer("c", "Deconvolution", "x", "c", f"convolution_param {{ {rest} }}"),
        shape=(3, 48, 6, 5),
    )

    planned = expect_same(text, ["c"], rtol=ROUNDING)

    sums = ["partial"] * (bias == "true")
    assert kernels(planned) == [CONVOLUTION, *sums, GRADIENT, CONVOLUTION]


def test_all_three_passes_go_over_tiles():
    planned = build(net(conv(32), shape=(2, 16, 12, 12)))

    run(planned)

    assert kernels(planned) == [CONVOLUTION, GRADIENT, CONVOLUTION]


@pytest.mark.parametrize(("c", "m"), [(60, 100), (64, 100), (100, 64)])
def test_channels_that_nearly_fill_vectors_train_over_tiles(c, m):
    planned = expect_same(net(conv(m), shape=(2, c, 12, 12)), ["c"], rtol=ROUNDING)

    assert kernels(planned) == [CONVOLUTION, GRADIENT, CONVOLUTION]


@pytest.mark.parametrize("rows", [13, 20, 27])
@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("strips", [1, 2, 3])
def test_strips_are_worked_on_a_few_at_a_time(rows, taps, strips):
    rest = f"kernel_size: {taps} pad: {taps // 2} group: 2"
    text = net(conv(16, rest), layer("r", "ReLU", "c", "c"), shape=(3, 16, rows, 10))

    def tiles():
        planned = build(text)
        planned.forward()
        return planned.plan.entries[1].step.forward_calls[0].kernel.kernel.schedule

    space = strips * tiles().strip_bytes
    with settings.override(threads=1), tuned(fewest_tiles=1, stack_bytes=space):
        assert 1 <= tiles().block_strips <= 1.5 * strips
        expect_same(text, ["c"], rtol=ROUNDING)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("space", [1, 1 << 20])
def test_threads_share_the_tiles_where_filters_are_many(threads, space):
    rest = "kernel_size: 3 pad: 1 group: 2"
    text = net(conv(32, rest), layer("r", "ReLU", "c", "c"), shape=(5, 16, 18, 10))

    with (
        settings.override(threads=threads),
        tuned(shared_filter_bytes=0, shared_stack_bytes=space),
    ):
        expect_same(text, ["c"], rtol=ROUNDING)


def test_channels_that_fill_no_whole_vectors():
    text = net(conv(50, "kernel_size: 5 pad: 1"), shape=(3, 20, 14, 13))

    planned = expect_same(text, ["c"], rtol=ROUNDING)

    assert kernels(planned) == [CONVOLUTION, GRADIENT, CONVOLUTION]


def test_blocks_of_channels_and_rows_of_tiles_that_are_cut_off():
    text = net(
        conv(32), layer("r", "ReLU", "c", "c"), conv(48, bottom="c", name="d"),
        shape=(2, 16, 15, 13),
    )  # fmt: skip

    expect_same(text, ["c", "d"], rtol=ROUNDING)


def test_offsets_and_a_rectifier_are_part_of_the_way_back():
    text = net(conv(24), layer("r", "ReLU", "c", "c"), shape=(2, 16, 9, 9))

    planned = build(text, "TEST")

    expect_same(text, ["c"], "TEST", rtol=ROUNDING)
    planned.forward()
    assert kernels(planned) == [CONVOLUTION]
    assert planned.plan.entries[1].group.count == 2


def test_stored_statistics_and_factors_are_folded_into_the_filters():
    text = net(
        conv(24, "kernel_size: 3 pad: 1 bias_term: false"),
        layer("n", "BatchNorm", "c", "c"),
        layer("s", "Scale", "c", "c", "scale_param { bias_term: true }"),
        layer("r", "ReLU", "c", "c"),
        shape=(2, 16, 9, 9),
    ).replace("force_backward: true", "")
    planned, portable = build(text, "TEST"), build(text, "TEST", optimize=False)

    for factor in (1.0, 0.5):  # the second time, the filters are made again
        for each in (planned, portable):
            each.params["s"][0].data[...] *= factor
            each.forward()
        assert planned.plan.entries[1].group.count == 4
        want = portable.blobs["c"].data
        assert np.abs(planned.blobs["c"].data - want).max() <= ROUNDING * want.max()


def test_filters_are_made_again_when_the_parameter_has_changed():
    planned = build(net(conv(16), shape=(1, 16, 8, 8)), "TEST")
    planned.forward()
    before = np.array(planned.blobs["c"].data)

    for blob in planned.params["c"]:
        blob.data[...] *= 2
    planned.forward()

    np.testing.assert_allclose(planned.blobs["c"].data, 2 * before, rtol=1e-4, atol=1e-3)


def test_a_setting_asks_for_the_definition():
    settings.set("winograd", False)
    try:
        planned = build(net(conv(16), shape=(1, 16, 8, 8)), "TEST")
        planned.forward()
    finally:
        settings.set("winograd", None)

    assert CONVOLUTION not in kernels(planned)


@pytest.mark.parametrize(
    "rest",
    [
        "kernel_size: 11 pad: 2 stride: 2", "kernel_size: 3 dilation: 2 pad: 1",
        "kernel_size: 13 pad: 6", "kernel_size: 6 group: 2", "kernel_size: 6 dilation: 2 pad: 2",
        "kernel_size: 1", "kernel_size: 2 stride: 2", "kernel_size: 4 stride: 2 group: 2",
        "kernel_size: 3 stride: 2 dilation: 2",
    ],
)  # fmt: skip
def test_other_windows_follow_the_definition(rest):
    planned = build(net(conv(16, rest), shape=(1, 16, 9, 9)), "TEST")

    planned.forward()

    assert CONVOLUTION not in kernels(planned)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("images", [4, 6])
def test_any_number_of_threads_computes_the_same(images, threads):
    text = net(
        conv(16, "kernel_size: 3 pad: 1 group: 2"), layer("r", "ReLU", "c", "c"),
        shape=(images, 8, 12, 12),
    )  # fmt: skip

    with settings.override(threads=threads):
        expect_same(text, ["c"], rtol=ROUNDING)


# NaN in the input spreads over a tile, and infinity in the filters becomes NaN in the transform
@pytest.mark.parametrize(("place", "value"), [(0, np.nan), (1, np.nan), (1, -np.inf)])
@pytest.mark.parametrize("end", ENDS)
def test_a_number_that_is_none_goes_where_it_does_in_portable_code(end, place, value):
    text = net(conv(32, "kernel_size: 3"), *ENDS[end], shape=(2, 16, 12, 11))

    got, want = outputs_with(value, place, text)

    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
