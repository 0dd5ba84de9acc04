"""Dropout in kernels: the portable layer's results, in the layout the data has."""

import numpy as np
import pytest
from lowered import build, expect_same, layer, net

from demitasse.backends.cpu import slow_reason
from demitasse.memory import transfers

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

IN_PLACE = pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
RATIO = "dropout_param { dropout_ratio: 0.4 }"


def chain(in_place, channels=16, ratio=RATIO):
    top = "c" if in_place else "y"
    window = "kernel_size: 3 pad: 1"
    return net(
        layer(
            "conv",
            "Convolution",
            "x",
            "c",
            f"convolution_param {{ num_output: {channels} {window} }}",
        ),
        layer("drop", "Dropout", "c", top, ratio),
        layer("next", "Convolution", top, "z", f"convolution_param {{ num_output: 16 {window} }}"),
    )


@IN_PLACE
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("channels", [3, 16, 20], ids=str)
@pytest.mark.parametrize(
    "ratio",
    [RATIO, "dropout_param { dropout_ratio: 0 }", RATIO.replace("}", "scale_train: false }")],
    ids=["some", "0", "unscaled"],
)
def test_dropout_behind_a_convolution(ratio, channels, phase, in_place):
    expect_same(chain(in_place, channels, ratio), ["conv", "drop", "next"], phase)


@IN_PLACE
@pytest.mark.parametrize("shape", [(7,), (5, 9), (2, 3, 4), (2, 3, 2, 2, 2)], ids=str)
def test_dropout_of_any_shape_is_the_portable_one_bit_for_bit(shape, in_place):
    top = "x" if in_place else "y"
    text = net(layer("drop", "Dropout", "x", top, RATIO), shape=shape)
    planned, portable = build(text), build(text, optimize=False)
    rng = np.random.default_rng(1)

    for _ in range(3):  # each pass has its own mask
        values, gradient = rng.normal(size=shape), rng.normal(size=shape)
        for each in (planned, portable):
            each.blobs["x"].data[...] = values
            each.forward()
            values_after = np.array(each.blobs[top].data)
            each.blobs[top].diff[...] = gradient
            each.backward(-1)
            each.result = values_after, np.array(each.blobs["x"].diff)

        for ours, theirs in zip(planned.result, portable.result, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@IN_PLACE
def test_nothing_is_brought_into_c_order(in_place):
    planned = build(chain(in_place))
    without = build(chain(in_place).replace('type: "Dropout"', 'type: "ReLU"').replace(RATIO, ""))

    for each in (planned, without):
        for _ in range(2):
            before = transfers.reorders
            each.forward()
            each.backward(-1)
            each.reorders = transfers.reorders - before

    assert planned.reorders == without.reorders


def test_in_test_it_is_not_there():
    planned = build(chain(in_place=True), "TEST")
    planned.forward()
    memory = planned.blobs["c"].data_memory
    version = memory.version

    step = planned.plan.entries[planned.layer_names.index("drop")].step
    step.forward()

    assert memory.version == version
