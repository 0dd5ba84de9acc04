"""Convolutions by implicit GEMM in nets, over one to three axes, against the portable code."""

import numpy as np
import pytest
from lowered import (
    NEEDS_KERNELS,
    WIDTHS,
    build,
    conv,
    expect_same,
    layer,
    net,
    run,
    taken_by_rows,
    tuned,
)

from demitasse.core.config import settings

pytestmark = NEEDS_KERNELS

WIDTH = pytest.mark.parametrize("width", WIDTHS)
AXES = {1: (19,), 2: (9, 8), 3: (5, 7, 6)}
FIELDS = {
    "pixels": "kernel_size: 1",
    "windows": "kernel_size: 3 pad: 1",
    "strides": "kernel_size: 3 pad: 1 stride: 2",
    "strides beyond windows": "kernel_size: 1 stride: 3",
    "dilated": "kernel_size: 3 pad: 2 dilation: 2",
    "far beyond the image": "kernel_size: 2 pad: 4 stride: 2",
    "groups": "kernel_size: 2 pad: 1 group: 3",
    "dilated strides in groups": "kernel_size: 3 pad: 2 stride: 2 dilation: 2 group: 2",
}


def code_of(planned):
    return planned.plan.entries[1].step.code


@WIDTH
@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize(("channels", "filters"), [(6, 12), (42, 36)])
def test_all_passes_over_one_or_three_axes(channels, filters, fields, axes, width):
    text = net(conv(filters, fields), shape=(2, channels, *AXES[axes]))

    with tuned(width=width, without=frozenset({"few_inputs", "winograd"})):
        planned = expect_same(text, ["c"])

    assert code_of(planned).startswith("igemm llvm")
    assert planned.plan.entries[1].step.backward_code.startswith("igemm llvm")


@WIDTH
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("fields", ["kernel_size: 3 stride: 2", "kernel_size: 1"])
@pytest.mark.parametrize("filters", [1, 3, 7, 8, 9, 16, 17, 24, 33])
def test_panels_of_one_or_two_vectors_and_padded_ones(filters, fields, axes, width):
    text = net(conv(filters, fields), shape=(2, 20, *AXES[axes]))

    with tuned(width=width):
        expect_same(text, ["c"])


@WIDTH
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("filters", [5, 32])
def test_deconvolutions_over_any_axes(filters, stride, axes, width):
    fields = f"num_output: {filters} kernel_size: 3 pad: 1 stride: {stride}"
    deconvolution = layer("c", "Deconvolution", "x", "c", f"convolution_param {{ {fields} }}")

    with tuned(width=width):
        expect_same(net(deconvolution, shape=(2, 18, *AXES[axes])), ["c"], rtol=5e-5)


@WIDTH
@pytest.mark.parametrize("pads", ["pad_b: 4 pad_r: 4", "pad_r: 6 stride: 3"])
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_single_taps_with_pads_after_the_image_alone(kind, pads, width):
    fields = f"num_output: 24 kernel_size: 1 bias_term: false {pads}"
    text = net(layer("c", kind, "x", "c", f"convolution_param {{ {fields} }}"), shape=(2, 64, 9, 8))

    with tuned(width=width):
        expect_same(text, ["c"])


@WIDTH
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("then", ["", "ReLU", "ReLU6", "PReLU"])
@pytest.mark.parametrize("filters", [12, 33])
@pytest.mark.parametrize("threads", [1, 3])
def test_sums_and_rectifiers_are_fused(threads, filters, then, axes, width):
    shape = (2, 20, *AXES[axes])
    sum_ = layer("s", "Eltwise", "d c", "s")
    behind = [layer("r", then, "s", "s")] if then and then != "PReLU" else []
    behind = [layer("r", then, "s", "t")] if then == "PReLU" else behind
    other = conv(filters, "kernel_size: 1 stride: 2", name="d")
    text = net(other, conv(filters, "kernel_size: 3 pad: 1 stride: 2"), sum_, *behind, shape=shape)
    text = text.replace("force_backward: true", "")

    with settings.override(threads=threads), tuned(width=width):
        planned = build(text, "TEST", keep_blobs="outputs")
        portable = build(text, "TEST", optimize=False)
        for one in (planned, portable):
            one.forward()

    [name] = planned.outputs
    want = portable.blobs[name].data
    assert np.abs(planned.blobs[name].data - want).max() <= 2e-5 * np.abs(want).max()
    groups = [entry.group.step.code for entry in planned.plan.entries if entry.group]
    assert any("igemm llvm" in code and "Eltwise" in code for code in groups)


@WIDTH
@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("fields", [FIELDS["strides"], FIELDS["groups"]], ids=["strides", "groups"])
def test_threads_change_no_bits(fields, axes, width):
    text = net(conv(36, fields), shape=(3, 42, *AXES[axes]))
    results = []

    for threads in (1, 2, 3, 7):
        with settings.override(threads=threads), tuned(width=width):
            results.append(run(build(text)))

    for other in results[1:]:
        for name, values in results[0].items():
            np.testing.assert_array_equal(other[name], values, err_msg=name)


@WIDTH
@pytest.mark.parametrize("columns", [7, 8, 15, 16, 24, 50])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("filters", [4, 20, 40])
def test_images_of_one_channel_are_taken_by_their_rows(filters, stride, columns, width):
    fields = f"kernel_h: 3 kernel_w: {columns} stride_h: {stride} stride_w: 1 pad_h: 1 pad_w: 0"
    text = net(conv(filters, fields), shape=(2, 1, 11, columns))

    with tuned(width=width):
        planned = expect_same(text, ["c"])

    assert taken_by_rows(planned, 1) == (columns >= width)


def test_more_axes_run_elsewhere_and_say_why():
    planned = expect_same(net(conv(4, "kernel_size: 2"), shape=(2, 3, 3, 3, 3, 3)))

    assert "up to 3 axes" in planned.plan.entries[1].why
