"""Convolutions of images so small that some taps see only the padding around them."""

import numpy as np
import pytest
from lowered import NEEDS_KERNELS, WIDTHS, build, conv, layer, net, tuned

pytestmark = NEEDS_KERNELS

WIDTH = pytest.mark.parametrize("width", WIDTHS)
FIELDS = {
    "one tap of nine": ((1, 1), "kernel_size: 3 pad: 1", (1, 1)),
    "one tap of 49": ((1, 1), "kernel_size: 7 pad: 3", (1, 1)),
    "a row": ((1, 5), "kernel_size: 3 pad: 1", (1, 3)),
    "three taps of seven": ((2, 2), "kernel_size: 7 pad: 3", (3, 3)),
    "all taps": ((2, 2), "kernel_size: 3 pad: 1", (3, 3)),
    "strides": ((2, 2), "kernel_size: 7 pad: 3 stride: 2", (3, 3)),
    "dilated": ((1, 1), "kernel_size: 3 pad: 4 dilation: 4", (1, 1)),
    "less padding than a dilated tap": ((3, 3), "kernel_size: 3 pad: 3 dilation: 4", (3, 3)),
    "more padding than taps": ((1, 1), "kernel_size: 2 pad: 3", (2, 2)),
    "groups": ((1, 1), "kernel_size: 5 pad: 2 group: 3", (1, 1)),
    "each channel": ((1, 1), "kernel_size: 3 pad: 1 group: 24", (1, 1)),
    "one axis": ((1,), "kernel_size: 5 pad: 2", (1,)),
    "three axes": ((1, 3, 1), "kernel_size: 3 pad: 1", (1, 3, 1)),
}
CASES = pytest.mark.parametrize(("size", "fields", "kernel"), FIELDS.values(), ids=FIELDS)

NO_GRADIENTS = "force_backward: true", ""

NORM = layer("b", "BatchNorm", "c", "c")
SCALE = layer("s", "Scale", "c", "c", "scale_param { bias_term: true }")
RELU = layer("r", "ReLU", "c", "c")


def results(text, phase="TEST", output="c"):
    """The output of the planned net and of the portable one, for given and for new weights."""
    planned, portable = (build(text, phase, device) for device in ("cpu", "numpy"))
    pairs = []
    for change in (0.0, 0.25, 0.5):
        for one in (planned, portable):
            one.params["c"][0].data[...] += change
            one.forward()
        pairs.append([np.array(one.blobs[output].data) for one in (planned, portable)])
    return planned, pairs


def step_of(planned):
    return planned.plan.entries[1].step


@WIDTH
@CASES
@pytest.mark.parametrize("after", [(), (RELU,), (NORM, SCALE, RELU)], ids=["", "relu", "norm"])
def test_filters_are_cropped_to_what_sees_the_image(size, fields, kernel, after, width):
    text = net(conv(48, fields), *after, shape=(3, 24, *size)).replace(*NO_GRADIENTS)

    with tuned(width=width):
        planned, pairs = results(text)

    for got, expected in pairs:
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5)
    assert step_of(planned).op.kernel == kernel


@CASES
def test_filters_that_are_stored_in_half_are_cropped(size, fields, kernel):
    text = net(conv(48, fields), shape=(3, 24, *size)).replace(*NO_GRADIENTS)
    planned = build(text, "TEST", dtype="float16")
    whole = build(text, "TEST", "numpy")

    for one in (planned, whole):
        one.forward()

    got, expected = planned.blobs["c"].data, whole.blobs["c"].data
    np.testing.assert_allclose(got, expected, rtol=5e-3, atol=5e-3)
    assert step_of(planned).op.kernel == kernel


def test_filters_stay_whole_where_gradients_are_wanted():
    text = net(conv(48, "kernel_size: 7 pad: 3"), shape=(3, 24, 1, 1))

    planned, pairs = results(text, "TRAIN")

    for got, expected in pairs:
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5)
    assert step_of(planned).op.kernel == (7, 7)


@WIDTH
@pytest.mark.parametrize("size", [(1, 1), (1, 5)])
def test_a_cropped_depthwise_convolution_runs_with_the_1x1_convolution_after_it(size, width):
    each = conv(64, "kernel_size: 3 pad: 1 group: 64")
    text = net(each, RELU, conv(48, "kernel_size: 1", "c", "p"), shape=(3, 64, *size))

    with tuned(width=width):
        _, pairs = results(text.replace(*NO_GRADIENTS), output="p")

    for got, expected in pairs:
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5)
