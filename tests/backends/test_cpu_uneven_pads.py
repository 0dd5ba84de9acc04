"""Convolutions with other pads after the axes than before, as nets of TensorFlow have them."""

import numpy as np
import pytest
from lowered import (
    NEEDS_KERNELS,
    WIDTHS,
    expect_same,
    expect_same_outputs,
    layer,
    net,
    our_kernels,
    report_of,
    tuned,
)

import demitasse as dm
from demitasse.backends.kernels.language.target import has_amx
from demitasse.core.config import settings

pytestmark = NEEDS_KERNELS

PADS = {
    "after": "pad_t: 0 pad_l: 0 pad_b: 1 pad_r: 1",
    "more after": "pad_t: 1 pad_l: 0 pad_b: 2 pad_r: 3",
    "before": "pad_t: 2 pad_l: 1 pad_b: 0 pad_r: 0",
    "beyond windows": "pad_t: 0 pad_l: 1 pad_b: 4 pad_r: 5",
}

CASES = {
    "few channels": (3, 16, "kernel_size: 3 stride: 2", "direct"),
    "few channels, step 1": (3, 16, "kernel_size: 3", "direct"),
    "to few channels": (16, 3, "kernel_size: 3", "narrow"),
    "channels": (16, 16, "kernel_size: 3 stride: 2 group: 16", "depthwise"),
    "channels, step 1": (16, 16, "kernel_size: 5 group: 16", "depthwise"),
    "several outputs of a channel": (16, 32, "kernel_size: 3 stride: 2 group: 16", "depthwise"),
    "small groups": (16, 16, "kernel_size: 3 group: 4", "grouped"),
    "Winograd": (16, 16, "kernel_size: 3", "winograd"),
    "Winograd with strides": (16, 16, "kernel_size: 3 stride: 2", "winograd"),
    "Winograd with dilation": (16, 16, "kernel_size: 3 dilation: 2", ("winograd", "igemm")),
    "strides": (16, 16, "kernel_size: 2 stride: 3", "igemm"),
    "pixels": (16, 16, "kernel_size: 1 stride: 2", "igemm"),
}


def one(kind, c, m, fields, then=()):
    filler = 'weight_filler { type: "gaussian" std: 0.2 } bias_filler { type: "gaussian" }'
    pixels = f"convolution_param {{ num_output: {c} kernel_size: 1 {filler} }}"
    param = f"convolution_param {{ num_output: {m} {fields} {filler} }}"
    below = layer("below", "Convolution", "x", "b", pixels)
    return net(below, layer("c", kind, "b", "c", param), *then, shape=(2, 4, 13, 11))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("pads", PADS.values(), ids=PADS)
@pytest.mark.parametrize(("c", "m", "fields", "code"), CASES.values(), ids=CASES)
def test_both_passes_are_the_portable_ones(c, m, fields, code, pads, width):
    with our_kernels(width):
        planned = expect_same(one("Convolution", c, m, f"{fields} {pads}"), ["c"], rtol=1e-4)

    assert report_of(planned).code.startswith("igemm" if code == "narrow" else code)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("pads", PADS.values(), ids=PADS)
@pytest.mark.parametrize(("c", "m", "fields", "code"), CASES.values(), ids=CASES)
def test_deconvolutions_are_the_portable_ones(c, m, fields, code, pads, width):
    with our_kernels(width):
        expect_same(one("Deconvolution", m, c, f"{fields} {pads}"), ["c"], rtol=1e-4)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("pads", PADS.values(), ids=PADS)
@pytest.mark.parametrize("stride", [1, 2])
def test_a_depthwise_convolution_and_pixels_behind_it_run_as_one(stride, pads, width, threads):
    fields = f"kernel_size: 3 stride: {stride} group: 32 {pads}"
    relu, pixels = layer("r", "ReLU", "c", "c"), "convolution_param { num_output: 16 kernel_size: 1"
    then = relu, layer("y", "Convolution", "c", "y", f"{pixels} }}")
    text = one("Convolution", 32, 32, fields, then).replace("force_backward: true", "")

    always = frozenset({"separable"})
    with tuned(width=width, always=always), settings.override(threads=threads):
        planned = expect_same_outputs(text, rtol=1e-4)

    assert report_of(planned).code.startswith("separable")


@pytest.mark.skipif(not has_amx(16), reason="the processor has no AMX")
@pytest.mark.parametrize("pads", PADS.values(), ids=PADS)
@pytest.mark.parametrize("kernel", [1, 3])
def test_images_in_bfloat16_have_zeros_around_them(kernel, pads, tmp_path):
    filler = 'weight_filler { type: "gaussian" std: 0.2 }'
    param = "convolution_param {{ num_output: 32 kernel_size: {} {} {} }}".format
    below = layer("below", "Convolution", "x", "b", param(1, "", filler))
    path = tmp_path / "net.prototxt"
    path.write_text(
        net(below, layer("c", "Convolution", "b", "c", param(kernel, pads, filler)),
            shape=(2, 32, 13, 11)).replace("force_backward: true", "")
    )  # fmt: skip
    options = {"keep_blobs": "outputs", "seed": 1}
    fast = dm.Net(path, "TEST", device="cpu", dtype="bfloat16", **options)
    portable = dm.Net(path, "TEST", device="numpy", optimize=False, **options)
    x = np.random.default_rng(0).standard_normal((2, 32, 13, 11), np.float32)

    got, want = (each(x) for each in (fast, portable))

    assert np.abs(got - want).max() < 0.03 * np.abs(want).max()
