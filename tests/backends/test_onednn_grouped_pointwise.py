"""Convolutions of single pixels in groups of uneven size, against the portable code."""

import pytest
from lowered import build, conv, expect_same, layer, net, run

from demitasse.backends.onednn import status
from demitasse.backends.onednn.steps.fused_convolutions import GroupedPointwiseStep

pytestmark = pytest.mark.skipif(not status().loaded, reason=str(status()))


def grouped(channels, outputs, group, more="", shape=(2, 5, 3)):
    rest = f"kernel_size: 1 group: {group} bias_term: false {more}"
    n, *size = shape
    return net(conv(outputs, rest), layer("r", "ReLU", "c", "d"), shape=(n, channels, *size))


def taken(planned):
    return [isinstance(entry.step, GroupedPointwiseStep) for entry in planned.plan.entries]


@pytest.mark.parametrize(
    ("channels", "outputs", "group"), [(60, 240, 3), (240, 60, 3), (48, 24, 8), (34, 32, 2)]
)
@pytest.mark.parametrize("shape", [(2, 5, 3), (1, 1, 1), (3, 7, 1)])
def test_both_passes_are_the_portable_ones(channels, outputs, group, shape):
    planned = expect_same(grouped(channels, outputs, group, shape=shape), ["c"])

    assert any(taken(planned))


@pytest.mark.parametrize(
    ("channels", "outputs", "group", "more"),
    [
        (64, 32, 2, ""), (20, 20, 1, ""), (20, 20, 20, ""), (40, 60, 2, "stride: 2"),
        (40, 60, 2, "pad: 1"),
    ],
    ids=["whole blocks", "one group", "channels by themselves", "strides", "padding"],
)  # fmt: skip
def test_others_are_the_librarys_convolutions(channels, outputs, group, more):
    planned = build(grouped(channels, outputs, group, more))
    run(planned)

    assert not any(taken(planned))
