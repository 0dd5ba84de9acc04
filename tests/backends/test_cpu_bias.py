"""Bias layers and linear powers, alone and behind convolutions."""

import pytest
from lowered import NEEDS_KERNELS, conv, expect_same, expect_same_outputs, layer, net, report_of

from demitasse.plan.report import report

pytestmark = NEEDS_KERNELS

FILL = 'filler { type: "uniform" min: -1 max: 1 }'
FIELDS = {
    "Bias": f"bias_param {{ {FILL} }}",
    "Power": "power_param { scale: -0.5 shift: 0.25 }",
    "Scale": f"scale_param {{ {FILL} bias_term: true bias_{FILL} }}",
    "BatchNorm": "",
    "ReLU": "",
    "PReLU": f"prelu_param {{ {FILL} }}",
}
CHAINS = [
    ["Bias"],
    ["Power"],
    ["Bias", "ReLU"],
    ["Power", "PReLU"],
    ["Bias", "Power", "ReLU"],
    ["BatchNorm", "Bias", "Scale", "Power", "ReLU"],
]
CONVOLUTIONS = {
    "direct": (3, "kernel_size: 3 pad: 1"),
    "winograd": (16, "kernel_size: 3 pad: 1"),
    "pixels": (16, "kernel_size: 1"),
    "depthwise": (16, "kernel_size: 3 pad: 1 group: 16"),
}


def chained(kinds, *, in_place, bottom="c"):
    """Return layers of these types after each other, and the last top."""
    layers = []
    for i, kind in enumerate(kinds):
        top = bottom if in_place else f"top{i}"
        layers.append(layer(f"{kind} {i}", kind, bottom, top, FIELDS[kind]))
        bottom = top
    return layers, bottom


def expect_outputs(text):
    """Expect what a net without Steps computes, in passes with other parameters, too."""
    text = text.replace("force_backward: true", "")
    return expect_same_outputs(text, rtol=2e-5, passes=5, scaled_in=3)


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "apart"])
@pytest.mark.parametrize("kinds", CHAINS, ids=", ".join)
@pytest.mark.parametrize(("channels", "window"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_they_are_folded_into_a_convolution(channels, window, kinds, in_place):
    layers, _ = chained(kinds, in_place=in_place)
    text = net(conv(16, window), *layers, shape=(2, channels, 12, 12))

    fast = expect_outputs(text)

    one = report_of(fast)
    assert len(one.fused) == len(kinds)


def test_a_sum_follows_them():
    layers, top = chained(["Bias", "Power"], in_place=False)
    sums = layer("sum", "Eltwise", f"{top} x", "sum"), layer("relu", "ReLU", "sum", "sum")
    text = net(conv(16, "kernel_size: 1"), *layers, *sums, shape=(2, 16, 6, 6))

    fast = expect_outputs(text)

    one = report_of(fast)
    assert one.fused[-2:] == ("sum", "relu")


@pytest.mark.parametrize("kinds", CHAINS, ids=", ".join)
@pytest.mark.parametrize("window", ["kernel_size: 3 pad: 1", "kernel_size: 1"])
def test_they_are_folded_into_a_convolution_of_few_planes(window, kinds):
    layers, _ = chained(kinds, in_place=True)
    text = net(conv(3, window), *layers, shape=(2, 5, 12, 21))

    fast = expect_outputs(text)

    one = report_of(fast)
    assert one.code.startswith("planes llvm")
    assert len(one.fused) == len(kinds)


@pytest.mark.parametrize("scale", [0, 2])
@pytest.mark.parametrize("power", [0, 2])
def test_other_powers_run_by_themselves(power, scale):
    fields = f"power_param {{ power: {power} scale: {scale} shift: 0.5 }}"
    one = layer("p", "Power", "c", "p", fields)
    text = net(conv(16), one, shape=(2, 3, 6, 6))

    fast = expect_outputs(text)

    assert "power" not in report_of(fast).code


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kinds", [["Bias"], ["Bias", "ReLU"], ["Bias", "Power"]], ids=", ".join)
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "apart"])
@pytest.mark.parametrize("shape", [(3, 16, 5, 7), (2, 20, 4, 4), (5, 24)], ids=str)
def test_they_train_as_portable_ones(shape, in_place, kinds, frozen):
    layers, _ = chained(kinds, in_place=in_place, bottom="b")
    if frozen:
        layers[0] = layers[0].replace('type: "Bias"', 'param { lr_mult: 0 } type: "Bias"')
    below = layer("below", "Power", "x", "b", "power_param { scale: 2 }")
    text = net(below, *layers, shape=shape)

    planned = expect_same(text, [f"{kinds[0]} 0"])

    assert not any("portable" in one.code for one in report(planned.plan)[1:])
