"""Convolutions along one axis, as those along the rows of images."""

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
)

pytestmark = NEEDS_KERNELS

LENGTH = 37

CASES = {
    "few channels": (3, 16, "kernel: 9 stride: 2 pad: 4", "direct"),
    "one channel, wide windows": (1, 24, "kernel: 25 pad: 12", "direct"),
    "to few channels": (16, 3, "kernel: 5 pad: 1", "narrow"),
    "few channels to fewer": (5, 3, "kernel: 5 dilation: 2", "planes"),
    "channels": (16, 16, "kernel: 5 pad: 2 group: 16", "depthwise"),
    "few channels by themselves": (5, 5, "kernel: 3 stride: 2 group: 5", "depthwise"),
    "small groups": (16, 16, "kernel: 3 pad: 1 group: 4", "grouped"),
    "Winograd": (16, 16, "kernel: 3 pad: 1", "winograd"),
    "strides": (16, 16, "kernel: 3 stride: 3", "igemm"),
    "pixels": (16, 16, "kernel: 1", "igemm"),
}


def along(axes, c, m, fields):
    """Return a net with a convolution along the ``axes``-th form of one axis, and its blobs' shape.

    Forms: (N, C, L), (N, C, L, 1), (N, C, 1, L) and, with planes, (N, C, 3, L, 1).
    """
    lengths = {"L": [LENGTH], "L1": [LENGTH, 1], "1L": [1, LENGTH], "3L1": [3, LENGTH, 1]}[axes]
    neutral = {"kernel": 1, "stride": 1, "pad": 0, "dilation": 1}
    words = dict(zip(*[iter(fields.replace(":", "").split())] * 2, strict=True))
    group = words.pop("group", 1)
    param = f"num_output: {m} group: {group} " + " ".join(
        f"{name.replace('kernel', 'kernel_size')}: {words[name] if n == LENGTH else other}"
        for name, other in neutral.items()
        if name in words
        for n in lengths
    )
    filler = 'weight_filler { type: "gaussian" std: 0.2 } bias_filler { type: "gaussian" }'
    pixels = f"num_output: {c} kernel_size: 1 {filler}"
    below = layer("below", "Convolution", "x", "b", f"convolution_param {{ {pixels} }}")
    one = layer("c", "Convolution", "b", "c", f"convolution_param {{ {param} {filler} }}")
    return net(below, one, layer("relu", "ReLU", "c", "c"), shape=(2, 4, *lengths))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("axes", ["L", "L1", "3L1"])
@pytest.mark.parametrize(("c", "m", "fields", "code"), CASES.values(), ids=CASES)
def test_both_passes_are_the_portable_ones(c, m, fields, code, axes, width):
    with our_kernels(width):
        planned = expect_same(along(axes, c, m, fields), ["c"], rtol=1e-4)

    assert report_of(planned).code.startswith("igemm" if code in {"narrow", "planes"} else code)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("c", "m", "fields", "code"), CASES.values(), ids=CASES)
def test_a_forward_pass_has_the_same_bits_along_any_axis(c, m, fields, code, width):
    outputs = []
    for axes in ("L", "L1", "1L"):
        text = along(axes, c, m, fields).replace("force_backward: true", "")
        with our_kernels(width):
            planned = expect_same_outputs(text, rtol=1e-4)
            assert report_of(planned).code.startswith(code)
        outputs.append(planned.blobs["c"].data.ravel())

    np.testing.assert_array_equal(outputs[0], outputs[2])
    np.testing.assert_array_equal(outputs[1], outputs[2])
