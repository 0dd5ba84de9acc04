"""Gradients of pointwise convolutions with few filters, in nets, against the portable code."""

import pytest
from lowered import NEEDS_KERNELS, build, calls, conv, expect_same, layer, net, run, tuned

from demitasse.backends.onednn.jit_adapters.pointwise import PixelsGradientCall

pytestmark = NEEDS_KERNELS


def pointwise(channels, outputs, more="", shape=(2, 9, 7)):
    n, *size = shape
    own = conv(outputs, f"kernel_size: 1 {more}", bottom="a")
    return net(conv(channels, name="a"), own, layer("r", "ReLU", "c", "d"), shape=(n, 16, *size))


def ours(planned):
    return PixelsGradientCall in calls(planned)


@pytest.mark.parametrize("more", ["", "bias_term: false"])
@pytest.mark.parametrize(("channels", "outputs"), [(96, 64), (128, 32), (96, 192)])
def test_both_passes_are_the_portable_ones(channels, outputs, more):
    with tuned(pointwise="always"):
        planned = expect_same(pointwise(channels, outputs, more), ["c"])

    assert ours(planned)


@pytest.mark.parametrize(
    ("channels", "outputs", "more"),
    [(96, 60, ""), (100, 64, ""), (96, 64, "stride: 2"), (96, 64, "group: 2")],
    ids=["a part of a vector", "channels in parts of one", "strides", "groups"],
)
def test_others_are_the_librarys(channels, outputs, more):
    with tuned(pointwise="always"):
        planned = build(pointwise(channels, outputs, more))
        run(planned)

    assert not ours(planned)


def test_many_filters_are_the_librarys():
    planned = build(pointwise(96, 256))
    run(planned)

    assert not ours(planned)
