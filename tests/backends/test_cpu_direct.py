"""Direct convolution against the portable code."""

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
    expect_same_outputs,
    kernels,
    layer,
    net,
    our_kernels,
    outputs_with,
    run,
)

from demitasse.backends.cpu.engine import engine
from demitasse.backends.kernels import few_inputs
from demitasse.core.config import settings

pytestmark = NEEDS_KERNELS

ROUNDING = 5e-6
"""Of the largest value."""


@pytest.fixture(autouse=True, params=WIDTHS, ids="{} floats".format)
def always(request):
    """Take our kernels for small images, too."""
    with our_kernels(request.param):
        yield


@given(
    n=st.integers(1, 3),
    c=st.integers(1, 4),
    m=st.integers(8, 40),
    size=st.tuples(st.integers(7, 17), st.integers(7, 17)),
    kernel=st.tuples(st.integers(1, 5), st.integers(2, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    bias=st.booleans(),
)
def test_both_passes_are_the_portable_ones(n, c, m, size, kernel, stride, pad, bias):
    rest = (
        f"kernel_h: {kernel[0]} kernel_w: {kernel[1]} stride_h: {stride[0]} stride_w: {stride[1]} "
        f"pad_h: {pad[0]} pad_w: {pad[1]} bias_term: {str(bias).lower()}"
    )
    text = net(conv(m, rest), shape=(n, c, *size))

    planned = expect_same(text, rtol=ROUNDING)

    backward = planned.plan.entries[1].step.backward_code
    assert ("direct" in backward) == (m >= engine().tuning.width)


@pytest.mark.parametrize("size", [(4, 2), (2, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize("rest", ["stride: 3", "stride: 5 dilation: 2"])
def test_a_window_reaches_past_a_small_image(size, rest):
    text = net(conv(20, f"kernel_size: 3 {rest}"), shape=(2, 3, *size))

    planned = expect_same(text, rtol=ROUNDING)

    assert "direct" in planned.plan.entries[1].step.backward_code


def test_the_gradient_of_the_filters_is_ours():
    planned = build(net(conv(32, "kernel_size: 5 pad: 2"), shape=(2, 3, 12, 12)))

    run(planned)

    assert "DirectGradient" in kernels(planned)


def test_filters_that_fill_no_vector_are_ours_in_the_forward_pass_too():
    text = net(conv(20, "kernel_size: 5"), layer("r", "ReLU", "c", "c"), shape=(3, 1, 28, 28))

    planned = build(text, "TEST")
    planned.forward()

    assert kernels(planned) == ["DirectConvolution"]
    expect_same(text, ["c"], "TEST", rtol=ROUNDING)


def test_no_windows_are_copied_where_an_image_has_more_padding_than_a_window_is_wide():
    text = net(conv(32, "kernel_size: 3 pad: 9"), layer("r", "ReLU", "c", "c"), shape=(2, 3, 12, 9))

    planned = build(text, "TEST")
    planned.forward()

    assert planned.plan.entries[1].step.code.startswith("direct llvm")
    expect_same(text, ["c"], "TEST", rtol=ROUNDING)
    expect_same(text, rtol=ROUNDING)


AFTER = {
    "nothing": "",
    "ReLU": 'type: "ReLU"',
    "PReLU": 'type: "PReLU" prelu_param { filler { type: "uniform" min: -1 max: 1 } }',
    "Clip": 'type: "Clip" clip_param { min: 0.5 max: 2 }',
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("m", [8, 9, 13, 15])
@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
def test_filters_fill_part_of_a_vector(after, m, threads):
    last = [f'layer {{ name: "r" {after} bottom: "c" top: "c" }}'] if after else []
    pool = layer("p", "Pooling", "c", "p", "pooling_param { kernel_size: 2 stride: 2 }")
    text = net(conv(m, "kernel_size: 3 pad: 1"), *last, pool, shape=(2, 3, 11, 13))

    with settings.override(threads=threads):
        planned = expect_same_outputs(
            text.replace("force_backward: true", ""), passes=2, rtol=ROUNDING
        )

    codes = [planned.plan.entries[i].step.code for i in (1, -1)]
    assert codes[0].startswith("direct llvm")
    assert codes[1].startswith("pool llvm")


@pytest.mark.parametrize("pad", [0, 8, 20])
@pytest.mark.parametrize("most", [None, 256])
def test_windows_that_would_need_too_much_code_run_by_implicit_gemm(pad, most, monkeypatch):
    if most is not None:
        monkeypatch.setattr(few_inputs, "MOST_UNROLLED", most)
    text = net(conv(20, f"kernel_h: 3 kernel_w: 37 pad_w: {pad}"), shape=(2, 1, 12, 60))

    planned = expect_same(text, ["c"], rtol=ROUNDING)

    code = planned.plan.entries[1].step.code
    assert code.startswith("direct llvm" if most is None else "igemm llvm")


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(
    "rest",
    ["kernel_size: 3 pad: 1", "kernel_size: 5 bias_term: false", "kernel_size: 3 dilation: 2",
     "kernel_h: 2 kernel_w: 5 pad_h: 1 pad_w: 3"],
)  # fmt: skip
@pytest.mark.parametrize("threads", [1, 3])
def test_gradients_of_a_convolution_to_few_channels_are_direct_convolutions(threads, rest, m):
    text = net(conv(m, rest), shape=(3, 32, 9, 11))

    with settings.override(threads=threads):
        planned = expect_same(text, ["c"], rtol=ROUNDING)

    assert kernels(planned)[-2:] == ["TransposedGradient", "TransposedConvolution"]


@pytest.mark.parametrize("rest", ["kernel_size: 3 stride: 2", "kernel_size: 3 pad: 3"])
def test_gradients_of_others_to_few_channels_are_implicit_gemms(rest):
    text = net(conv(2, rest), shape=(2, 32, 9, 11))

    planned = expect_same(text, rtol=ROUNDING)

    assert "TransposedConvolution" not in kernels(planned)


@pytest.mark.parametrize("frozen", [0, 1])
def test_few_channels_learn_their_weights_or_their_bias_alone(frozen):
    multipliers = " ".join(f"param {{ lr_mult: {int(i != frozen)} }}" for i in range(2))
    text = net(conv(2), shape=(2, 32, 6, 7)).replace('type: "Conv', f'{multipliers} type: "Conv')

    expect_same(text, rtol=ROUNDING)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_no_number_reaches_the_windows_it_belongs_to(value):
    text = net(conv(2), shape=(2, 32, 6, 7))
    found = []
    for lowered in (True, False):
        each = build(text, optimize=lowered)
        each.clear_param_diffs()
        each.forward()
        each.blobs["c"].diff[...] = 1.0
        each.blobs["c"].diff[1, 0, 3, 3] = value
        each.backward()
        found.append([each.blobs["x"].diff, *(blob.diff for blob in each.params["c"])])

    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_filters_are_taken_again_when_they_have_changed():
    planned = build(net(conv(20, "kernel_size: 5"), shape=(1, 1, 12, 12)), "TEST")
    planned.forward()
    before = np.array(planned.blobs["c"].data)

    for blob in planned.params["c"]:
        blob.data[...] *= 2
    planned.forward()

    np.testing.assert_allclose(planned.blobs["c"].data, 2 * before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_computes_the_same(threads):
    text = net(conv(20, "kernel_size: 3 pad: 1"), shape=(2, 1, 5, 9))

    with settings.override(threads=threads):
        expect_same(text, ["c"], rtol=ROUNDING)


@pytest.mark.parametrize("size", [1, 600, 1 << 20])
def test_a_few_rows_are_worked_on_at_a_time(size, monkeypatch):
    monkeypatch.setattr(few_inputs, "BAND", size)
    text = net(conv(20, "kernel_size: 3 stride: 2 pad: 1 dilation: 2"), shape=(3, 2, 30, 21))

    expect_same(text, ["c"], rtol=ROUNDING)


def test_stored_statistics_come_along():
    text = net(
        conv(64, "kernel_size: 7 stride: 2 pad: 3 bias_term: false"),
        layer("n", "BatchNorm", "c", "c"),
        layer("s", "Scale", "c", "c", "scale_param { bias_term: true }"),
        layer("r", "ReLU", "c", "c"),
        shape=(2, 3, 40, 37),
    )

    fast = expect_same_outputs(text.replace("force_backward: true", ""), rtol=2e-5)

    assert fast.plan.entries[1].group.count == 4


def test_a_blob_that_is_kept_is_computed():
    text = net(
        conv(32, "kernel_size: 5 pad: 2"), layer("r", "ReLU", "c", "y"), shape=(1, 3, 16, 16)
    )
    text = text.replace("force_backward: true", "")

    kept = build(text, "TEST", keep_blobs=["c"])
    plain = build(text, "TEST", optimize=False)
    for each in (kept, plain):
        each.forward()

    assert kept.plan.entries[1].group is None
    want = plain.blobs["c"].data
    assert np.abs(kept.blobs["c"].data - want).max() <= ROUNDING * np.abs(want).max()


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("place", ["x", 0, 1])
@pytest.mark.parametrize("end", ENDS)
def test_a_number_that_is_none_goes_where_it_does_in_portable_code(end, place, value):
    text = net(conv(20, "kernel_size: 3"), *ENDS[end], shape=(2, 3, 12, 11))

    got, want = outputs_with(value, place, text)

    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
