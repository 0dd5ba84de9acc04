"""Convolutions of single pixels in groups of uneven size, against the portable code."""

import pytest
from lowered import conv, expect_same, layer, net

from demitasse.backends.cpu import slow_reason

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())


def grouped(channels, outputs, group, more="", shape=(2, 5, 3)):
    rest = f"kernel_size: 1 group: {group} bias_term: false {more}"
    n, *size = shape
    return net(conv(outputs, rest), layer("r", "ReLU", "c", "d"), shape=(n, channels, *size))


def code_of(planned):
    return planned.plan.entries[1].step.code


@pytest.mark.parametrize(
    ("channels", "outputs", "group"), [(60, 240, 3), (240, 60, 3), (48, 24, 8), (34, 32, 2)]
)
@pytest.mark.parametrize("shape", [(2, 5, 3), (1, 1, 1), (3, 7, 1)])
def test_both_passes_are_the_portable_ones(channels, outputs, group, shape):
    planned = expect_same(grouped(channels, outputs, group, shape=shape), ["c"])

    assert code_of(planned).startswith("igemm llvm")


@pytest.mark.parametrize(
    ("channels", "outputs", "group", "more"),
    [
        (64, 32, 2, ""), (20, 20, 1, ""), (20, 20, 20, ""), (40, 60, 2, "stride: 2"),
        (40, 60, 2, "pad: 1"),
    ],
    ids=["whole blocks", "one group", "channels by themselves", "strides", "padding"],
)  # fmt: skip
def test_so_are_those_of_whole_blocks_strides_and_pads(channels, outputs, group, more):
    planned = expect_same(grouped(channels, outputs, group, more), ["c"])

    alone = group == channels  # each channel by itself
    assert code_of(planned).startswith("depthwise llvm" if alone else "igemm llvm")
