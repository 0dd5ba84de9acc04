"""Deployed nets on device cpu: no image is brought from one layout into another on its way.

Small convolutions of few channels run by implicit GEMM, which has the input brought to channels
last.
"""

import dataclasses

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.engine import Engine, engine
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.report import report

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

WIDE = pytest.mark.skipif(
    bool(slow_reason()) or engine().tuning.width < 16,
    reason="other layouts are chosen without AVX-512",
)

INPUT = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 65 dim: 65 } } }
"""


def convolution(name, bottom, maps, kernel, stride=1):
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" '
        f"convolution_param {{ num_output: {maps} kernel_size: {kernel} stride: {stride} "
        'weight_filler { type: "xavier" } } }'
    )


def norm(name, bottom, top):
    return (
        f'layer {{ name: "{name}" type: "BatchNorm" bottom: "{bottom}" top: "{top}" }} '
        f'layer {{ name: "{name}_scale" type: "Scale" bottom: "{top}" top: "{top}" '
        "scale_param { bias_term: true } } "
        f'layer {{ name: "{name}_relu" type: "ReLU" bottom: "{top}" top: "{top}" }}'
    )


BEGIN = f"""
{INPUT}
{convolution("c1", "x", 64, 3, stride=2)}
layer {{ name: "relu" type: "ReLU" bottom: "c1" top: "c1" }}
layer {{ name: "pool" type: "Pooling" bottom: "c1" top: "pool"
  pooling_param {{ kernel_size: 3 stride: 2 }} }}
"""
MOBILE = f"""
{INPUT}
{convolution("c1", "x", 32, 3, stride=2)}
layer {{ name: "relu" type: "ReLU" bottom: "c1" top: "c1" }}
layer {{ name: "each" type: "Convolution" bottom: "c1" top: "each" convolution_param {{
  num_output: 32 group: 32 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}
{convolution("y", "each", 64, 1)}
"""
PAIRS = f"""
{INPUT}
{convolution("c1", "x", 32, 3, stride=2)}
layer {{ name: "relu" type: "ReLU" bottom: "c1" top: "c1" }}
layer {{ name: "each" type: "Convolution" bottom: "c1" top: "each" convolution_param {{
  num_output: 32 group: 32 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "each_relu" type: "ReLU" bottom: "each" top: "each" }}
{convolution("y", "each", 64, 1)}
layer {{ name: "last" type: "Pooling" bottom: "y" top: "last"
  pooling_param {{ pool: AVE global_pooling: true }} }}
"""
SQUEEZE = BEGIN + convolution("y", "pool", 16, 1)
DENSE = f"""
{BEGIN}
{convolution("grown", "pool", 32, 1)}
layer {{ name: "both" type: "Concat" bottom: "pool" bottom: "grown" top: "both" }}
{norm("norm", "both", "normed")}
{convolution("y", "normed", 16, 1)}
"""
RESIDUAL = f"""
{BEGIN}
{convolution("branch", "pool", 64, 1)}
layer {{ name: "sum" type: "Eltwise" bottom: "pool" bottom: "branch" top: "sum" }}
{convolution("y", "sum", 16, 1)}
"""
SHUFFLED = f"""
{BEGIN}
layer {{ name: "shuffled" type: "ShuffleChannel" bottom: "pool" top: "shuffled"
  shuffle_channel_param {{ group: 4 }} }}
{convolution("y", "shuffled", 16, 1)}
"""
TABLES = f"""
{BEGIN}
layer {{ name: "groups" type: "Reshape" bottom: "pool" top: "groups"
  reshape_param {{ axis: 1 num_axes: 1 shape {{ dim: 4 dim: 16 }} }} }}
layer {{ name: "turned" type: "Permute" bottom: "groups" top: "turned"
  permute_param {{ order: 0 order: 2 order: 1 }} }}
layer {{ name: "y" type: "Reshape" bottom: "turned" top: "y"
  reshape_param {{ axis: 1 shape {{ dim: -1 }} }} }}
"""
GATED = f"""
{BEGIN}
{convolution("branch", "pool", 64, 1)}
layer {{ name: "mean" type: "Pooling" bottom: "branch" top: "mean"
  pooling_param {{ pool: AVE global_pooling: true }} }}
{convolution("gate", "mean", 64, 1)}
layer {{ name: "open" type: "Sigmoid" bottom: "gate" top: "gate" }}
"""
EXCITED = f"""
{GATED}
layer {{ name: "sum" type: "Axpy" bottom: "gate" bottom: "branch" bottom: "pool" top: "sum" }}
{convolution("y", "sum", 16, 1)}
"""
SCALED = f"""
{GATED}
layer {{ name: "rows" type: "Flatten" bottom: "gate" top: "rows" }}
layer {{ name: "scaled" type: "Scale" bottom: "branch" bottom: "rows" top: "scaled"
  scale_param {{ axis: 0 }} }}
{convolution("y", "scaled", 16, 1)}
"""
GROUPED = f"""
{BEGIN}
{convolution("wide", "pool", 64, 1)}
layer {{ name: "groups" type: "Convolution" bottom: "wide" top: "groups" convolution_param {{
  num_output: 64 group: 16 kernel_size: 3 pad: 1 stride: 2 weight_filler {{ type: "xavier" }} }} }}
{norm("norm", "groups", "groups")}
{convolution("y", "groups", 16, 1)}
"""
NARROW = f"""
{INPUT}
{convolution("one", "x", 64, 3)}
{convolution("two", "one", 64, 3)}
layer {{ name: "relu" type: "ReLU" bottom: "two" top: "two" }}
{convolution("y", "two", 1, 3)}
"""
ADDED = f"""
{NARROW}
{convolution("beside", "two", 1, 3)}
layer {{ name: "sum" type: "Eltwise" bottom: "y" bottom: "beside" top: "sum" }}
"""


NORMED = DENSE.replace("num_output: 16 kernel_size: 1", "num_output: 64 kernel_size: 1")
BOTTLENECK = f"""
{NORMED}
{norm("then", "y", "y")}
"""


def made(text, **options):
    net = Net(parse_text(text, NetParameter), "TEST", seed=3, keep_blobs="outputs", **options)
    rng = np.random.default_rng(1)
    for name, blobs in net.params.items():
        if net.layer_by_name(name).type == "BatchNorm":
            for blob, value in zip(blobs, (0.1, 2.0, 1.5), strict=True):
                blob.mutable_cpu_data()[...] = value
    net.blobs["x"].mutable_cpu_data()[...] = rng.normal(size=net.blobs["x"].shape)
    return net


@pytest.fixture
def apart(monkeypatch):
    """Have depthwise convolutions and those of pixels behind them run by themselves."""
    tuning = dataclasses.replace(engine().tuning, without=frozenset({"separable"}))
    monkeypatch.setattr(engine(), "tuning", tuning)


def reorders(net, monkeypatch):
    """Return the shapes of what a pass brings into another layout, results aside."""
    net.forward()
    shapes, reorder = [], Engine.reorder

    def counted(self, source, here, target, there):
        shapes.append(here.shape)
        reorder(self, source, here, target, there)

    monkeypatch.setattr(Engine, "reorder", counted)
    net.blobs["x"].mutable_cpu_data()
    net.forward()
    return shapes


def expect_no_reorders(text, monkeypatch):
    """Return a net that brings nothing into another layout, with the results of portable code."""
    net, portable = made(text, device="cpu"), made(text, device="cpu", optimize=False)

    assert reorders(net, monkeypatch) == []
    portable.forward()
    found, expected = net.blobs["y"].cpu_data(), portable.blobs["y"].cpu_data()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    return net


@WIDE
def test_what_is_pooled_is_written_as_the_next_convolution_reads_it(monkeypatch):
    net = made(SQUEEZE, device="cpu")

    assert reorders(net, monkeypatch) == []


@WIDE
def test_channels_are_shuffled_in_the_layout_they_are_in(monkeypatch):
    expect_no_reorders(SHUFFLED, monkeypatch)


@pytest.mark.parametrize("text", [TABLES, TABLES.replace("order: 1 }", "order: 3 order: 1 }")])
def test_groups_of_channels_are_permuted_from_the_layout_they_are_in(monkeypatch, text):
    expect_no_reorders(text, monkeypatch)


@WIDE
@pytest.mark.parametrize("text", [EXCITED, SCALED], ids=["axpy", "scale"])
def test_channels_are_weighed_in_the_layout_they_are_in(monkeypatch, text):
    net = expect_no_reorders(text, monkeypatch)

    [step] = [s for s in net.plan.steps() if "ChannelScale" in str(type(s).__mro__)]
    assert step.replayable


@WIDE
def test_a_sum_reads_and_writes_as_the_convolutions_around_it(monkeypatch):
    net = made(RESIDUAL, device="cpu")

    assert reorders(net, monkeypatch) == []


@WIDE
@pytest.mark.usefixtures("apart")
def test_a_depthwise_convolution_reads_what_a_first_one_writes(monkeypatch):
    net = made(MOBILE, device="cpu")

    assert reorders(net, monkeypatch) == []
    codes = {layer.name: layer.code for layer in report(net.plan)}
    assert codes["each"].startswith("depthwise llvm")


@pytest.mark.parametrize("channels", [2, 7, 8, 12, 20])
def test_depthwise_convolutions_of_few_channels_run_in_vectors_that_fit(channels):
    text = MOBILE.replace("num_output: 32 group: 32", f"num_output: {channels} group: {channels}")
    text = text.replace("num_output: 32", f"num_output: {channels}")
    net, portable = made(text, device="cpu"), made(text, device="cpu", optimize=False)

    net.forward()
    portable.forward()

    codes = {layer.name: layer.code for layer in report(net.plan)}
    assert codes["each"].startswith(("depthwise llvm", "separable llvm"))
    found, expected = net.blobs["y"].cpu_data(), portable.blobs["y"].cpu_data()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


FEW = f"""
{INPUT}
layer {{ name: "blur" type: "Convolution" bottom: "x" top: "blur" convolution_param {{
  num_output: 3 group: 3 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }}
  bias_filler {{ type: "uniform" }} }} }}
layer {{ name: "prelu" type: "PReLU" bottom: "blur" top: "blur" }}
layer {{ name: "pool" type: "Pooling" bottom: "blur" top: "pool" pooling_param {{
  kernel_size: 2 stride: 2 }} }}
layer {{ name: "again" type: "Convolution" bottom: "pool" top: "again" convolution_param {{
  num_output: 3 group: 3 kernel_size: 5 stride: 2 weight_filler {{ type: "xavier" }}
  bias_filler {{ type: "uniform" }} }} }}
layer {{ name: "sum" type: "Eltwise" bottom: "again" bottom: "again" top: "sum" }}
layer {{ name: "up" type: "Deconvolution" bottom: "sum" top: "up" convolution_param {{
  num_output: 3 group: 3 kernel_size: 4 stride: 2 pad: 1 weight_filler {{ type: "bilinear" }}
  bias_filler {{ type: "uniform" }} }} }}
{convolution("y", "up", 2, 3)}
"""


def test_few_channels_with_zeros_behind_them_go_from_layer_to_layer():
    net, portable = made(FEW, device="cpu"), made(FEW, device="numpy", optimize=False)
    for each in (net, portable):
        each.params["prelu"][0].data[...] = 0.1, 0.2, 0.3
        each.forward()

    codes = {layer.name: layer.code for layer in report(net.plan)}
    assert all(codes[name].startswith("depthwise llvm") for name in ("blur", "again", "up"))
    found, expected = net.blobs["y"].cpu_data(), portable.blobs["y"].cpu_data()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@WIDE
def test_convolutions_to_few_channels_read_what_others_write(monkeypatch):
    net = made(NARROW, device="cpu")

    images = [shape for shape in reorders(net, monkeypatch) if shape != (1, 64, 63, 63)]
    assert images == []
    assert {layer.name: layer.code for layer in report(net.plan)}["y"].startswith("narrow llvm")


def test_what_is_added_to_few_channels_is_added_behind_our_kernel():
    fast, portable = made(ADDED, device="cpu"), made(ADDED, device="numpy", optimize=False)
    for net in (fast, portable):
        net.forward()

    codes = {layer.name: layer.code for layer in report(fast.plan)}
    one, other = (net.blobs["sum"].cpu_data() for net in (fast, portable))

    assert all(codes[name].startswith("narrow llvm") for name in ("y", "beside"))
    assert np.abs(one - other).max() <= 2e-5 * np.abs(other).max()


@WIDE
@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    "text",
    [
        PAIRS,
        PAIRS.replace('top: "each" }', 'top: "rectified" }'),
        PAIRS.replace("num_output: 64", "num_output: 20"),
    ],
    ids=["in place", "not in place", "no whole blocks"],
)
def test_large_images_lie_as_the_convolution_of_pixels_reads_them(text, monkeypatch):
    if "rectified" in text:
        text = text.replace('bottom: "each" top: "y"', 'bottom: "rectified" top: "y"')
    fast, portable = made(text, device="cpu"), made(text, device="numpy", optimize=False)
    portable.forward()

    assert reorders(fast, monkeypatch) == []
    assert {layer.name: layer.code for layer in report(fast.plan)}["y"].startswith("igemm llvm")
    one, other = (net.blobs["last"].cpu_data() for net in (fast, portable))
    assert np.abs(one - other).max() <= 2e-5 * np.abs(other).max()


@WIDE
@pytest.mark.usefixtures("apart")
def test_images_that_have_become_small_lie_as_they_would_have(monkeypatch):
    net = made(PAIRS, device="cpu")
    net.forward()

    net.blobs["x"].reshape(1, 3, 33, 33)

    images = [shape for shape in reorders(net, monkeypatch) if shape[0] == 1]
    assert images == []  # weights may still move


@pytest.mark.parametrize(
    "text",
    [SQUEEZE, DENSE, MOBILE, RESIDUAL, NORMED, BOTTLENECK, GROUPED, NARROW],
    ids=["squeeze", "dense", "mobile", "residual", "normed", "bottleneck", "grouped", "narrow"],
)
def test_results_are_those_of_portable_code(text):
    fast, portable = made(text, device="cpu"), made(text, device="numpy", optimize=False)

    for net in (fast, portable):
        for _ in range(2):
            net.blobs["x"].mutable_cpu_data()
            net.forward()

    one, other = (net.blobs["y"].cpu_data() for net in (fast, portable))
    assert np.abs(one - other).max() <= 2e-5 * np.abs(other).max()


GATED = f"""
{INPUT}
{convolution("c", "x", 20, 3)}
layer {{ name: "shift" type: "Power" bottom: "c" top: "g" power_param {{ shift: 3 }} }}
layer {{ name: "limit" type: "ReLU6" bottom: "g" top: "g" }}
layer {{ name: "scale" type: "Power" bottom: "g" top: "h" power_param {{ scale: 0.1666667 }} }}
layer {{ name: "gate" type: "Eltwise" bottom: "c" bottom: "h" top: "y"
  eltwise_param {{ operation: PROD }} }}
"""


@pytest.mark.parametrize("last", ["PROD", "SUM"])
def test_activations_and_a_product_after_each_other_run_as_one(last):
    net, portable = (made(GATED.replace("PROD", last), device=name) for name in ("cpu", "numpy"))
    for one in (net, portable):
        one.forward()

    layers = {layer.name: layer for layer in report(net.plan)}
    assert layers["scale"].part_of == "shift"
    assert (layers["gate"].part_of == "shift") == (last == "PROD")
    found, expected = net.blobs["y"].cpu_data(), portable.blobs["y"].cpu_data()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_fixed_statistics_run_in_a_kernel_of_our_own():
    net = made(
        DENSE.replace("num_output: 16 kernel_size: 1", "num_output: 16 kernel_size: 3"),
        device="cpu",
    )
    net.forward()

    codes = {layer.name: layer.code for layer in report(net.plan)}
    assert codes["norm"].startswith("factors llvm")


@WIDE
def test_what_is_joined_in_several_layouts_has_the_channels_last():
    net = made(DENSE, device="cpu")
    net.forward()
    shape = net.blobs["both"].shape

    [step] = [entry.step for entry in net.plan.entries if entry.layer.name == "both"]

    assert step.y is layouts.innermost(shape, 1)


def test_what_they_compute_follows_the_parameters_of_all_layers():
    fast, portable = (
        made(BOTTLENECK, device="cpu"),
        made(BOTTLENECK, device="numpy", optimize=False),
    )
    for net in (fast, portable):
        net.forward()

    for name in ("norm", "norm_scale", "y", "then", "then_scale"):
        for net in (fast, portable):
            for blob in net.params[name]:
                blob.mutable_cpu_data()[...] += 0.25
            net.blobs["x"].mutable_cpu_data()
            net.forward()

        one, other = (net.blobs["y"].cpu_data() for net in (fast, portable))
        assert np.abs(one - other).max() <= 2e-5 * np.abs(other).max()


def test_a_rectifier_with_a_slope_follows_fixed_statistics():
    slope = 'bottom: "normed" top: "normed" relu_param { negative_slope: 0.1 }'
    text = NORMED.replace('bottom: "normed" top: "normed" }', slope + " }", 1)
    fast, portable = made(text, device="cpu"), made(text, device="numpy", optimize=False)
    for net in (fast, portable):
        net.forward()

    one, other = (net.blobs["y"].cpu_data() for net in (fast, portable))
    assert np.abs(one - other).max() <= 2e-5 * np.abs(other).max()


@pytest.mark.parametrize("maps", [64, 10])
def test_the_first_convolution_writes_pixels_for_a_reader_of_pixels(maps):
    image = np.random.default_rng(0).normal(size=(1, 3, 65, 65))
    text = f"""
        {INPUT}
        {convolution("c1", "x", maps, 3, stride=2)}
        layer {{ name: "relu" type: "ReLU" bottom: "c1" top: "c1" }}
        {convolution("y", "c1", 32, 1)}
    """
    message, found = parse_text(text, NetParameter), []
    for options in ({"keep_blobs": "outputs"}, {"optimize": False}):
        net = Net(message, "TEST", device="cpu", seed=1, **options)
        net.set_input("x", image)
        net.forward()
        found.append((np.array(net.blobs["y"].cpu_data()), report(net.plan)[1].code))

    assert found[0][1].startswith("direct llvm")
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4, atol=1e-4)
