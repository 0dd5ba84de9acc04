"""Convolutions over three axes as those of images, which are planes."""

import pytest
from lowered import NEEDS_KERNELS, WIDTHS, expect_same, layer, net, our_kernels, report_of

pytestmark = NEEDS_KERNELS


def conv(name, bottom, top, fields):
    filler = 'weight_filler { type: "gaussian" std: 0.2 } bias_filler { type: "gaussian" }'
    return layer(name, "Convolution", bottom, top, f"convolution_param {{ {fields} {filler} }}")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize(
    ("channels", "fields", "code"),
    [
        (16, "kernel_size: 1 kernel_size: 3 kernel_size: 3 pad: 0 pad: 1 pad: 1", "winograd"),
        (16, "group: 16 kernel_size: 1 kernel_size: 3 kernel_size: 3 pad: 0 pad: 1 pad: 1",
         "depthwise"),
        (3, "kernel_size: 1 kernel_size: 5 kernel_size: 5 stride: 1 stride: 2 stride: 2 "
         "pad: 0 pad: 2 pad: 2", "direct"),
        (16, "kernel_size: 3 kernel_size: 3 kernel_size: 3 pad: 1", "winograd"),
        (17, "kernel_size: 3 pad: 0 pad: 1 pad: 2", "winograd"),
        (24, "kernel_size: 2 kernel_size: 5 kernel_size: 3 pad: 1 pad: 0 pad: 1", "winograd"),
        (16, "kernel_size: 3 kernel_size: 4 kernel_size: 5 stride: 1 stride: 2 stride: 2 pad: 1 "
         "pad: 1 pad: 2", "winograd"),
        (16, "kernel_size: 2 kernel_size: 9 kernel_size: 6 pad: 1 pad: 4 pad: 2", "winograd"),
        (3, "kernel_size: 3 pad: 1", "direct"),
        (1, "kernel_size: 2 kernel_size: 5 kernel_size: 3 pad: 1 pad: 0 pad: 1", "direct"),
        (2, "kernel_size: 3 kernel_size: 4 kernel_size: 5 stride: 1 stride: 2 stride: 2 pad: 2 "
         "pad: 1 pad: 2", "direct"),
        (16, "kernel_size: 3 pad: 1 group: 2", "igemm"),
        (16, "kernel_size: 3 pad: 3", "igemm"),
        (16, "kernel_size: 3 pad: 1 dilation: 2 dilation: 1 dilation: 1", "igemm"),
        (16, "kernel_size: 1 kernel_size: 3 kernel_size: 3 stride: 2 stride: 1 stride: 1 "
         "pad: 0 pad: 1 pad: 1", "igemm"),
    ],
    ids=[
        "of frames", "of channels", "of few channels", "of three axes", "of fewer planes",
        "of an even number of planes", "of strides", "of large windows",
        "of three axes of few channels", "of an even number of planes of one channel",
        "of strides of few channels", "of groups",
        "of windows of zeros", "of planes apart", "of every second frame",
    ],
)  # fmt: skip
def test_they_are_those_of_portable_code(channels, fields, code, phase, width):
    text = net(
        conv("below", "x", "b", f"num_output: {channels} kernel_size: 1"),
        conv("c", "b", "c", f"num_output: 16 {fields}"),
        layer("relu", "ReLU", "c", "c"),
        conv("above", "c", "z", "num_output: 4 kernel_size: 1"),
        shape=(2, 3, 4, 13, 11),
    )

    with our_kernels(width):
        planned = expect_same(text, ["c"], phase=phase, rtol=1e-4)

    assert report_of(planned).code.startswith(code)


def test_a_single_frame_is_one_of_three_axes():
    fields = "num_output: 16 kernel_size: 1 kernel_size: 3 kernel_size: 3 pad: 0 pad: 1 pad: 1"
    text = net(
        conv("below", "x", "b", "num_output: 16 kernel_size: 1"),
        conv("c", "b", "c", fields),
        shape=(3, 3, 1, 13, 11),
    )

    expect_same(text, ["c"], rtol=1e-4)
