"""ReLU6, Clip and ReLU with a slope behind convolutions on device cpu: within our kernels."""

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.report import report

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

FILLERS = 'weight_filler { type: "msra" } bias_filler { type: "uniform" min: -1 max: 1 }'

PIXELS = "num_output: 96 kernel_size: 1"
EACH = "num_output: 32 group: 32 kernel_size: 3 pad: 1"
TILES = "num_output: 64 kernel_size: 3 pad: 1"
FEW = "num_output: 20 kernel_size: 3 pad: 1"

LARGE = "num_output: 32 group: 32 kernel_size: 9 pad: 4"
TO_FEW = "num_output: 3 kernel_size: 3"
CODES = {
    PIXELS: "igemm",
    EACH: "depthwise",
    TILES: "winograd",
    FEW: "direct",
    LARGE: "depthwise",
    TO_FEW: "narrow",
}

RELU6 = 'type: "ReLU6"'
CLIP = 'type: "Clip" clip_param { min: -1 max: 2 }'
TURNED = 'type: "Clip" clip_param { min: 1 max: -2 }'
LEAKY = 'type: "ReLU" relu_param { negative_slope: 0.1 }'
CURVES = SWISH, HARD_SWISH = 'type: "Swish"', 'type: "HardSwish"'

LIMITS = pytest.mark.parametrize(
    "limits",
    [RELU6, CLIP, TURNED, LEAKY, *CURVES],
    ids=["ReLU6", "Clip", "least above most", "slope", "Swish", "HardSwish"],
)
CONVOLUTIONS = pytest.mark.parametrize("fields", CODES, ids=CODES.values())


def layer(name, kind, bottom, fields="", top=None):
    tops = top or name
    return f'layer {{ name: "{name}" {kind} bottom: "{bottom}" top: "{tops}" {fields} }}\n'


def conv(name, bottom, fields):
    param = f"convolution_param {{ {fields} {FILLERS} }}"
    return layer(name, 'type: "Convolution"', bottom, param)


def norm(name):
    param = "scale_param { bias_term: true }"
    return layer(f"{name}_norm", 'type: "BatchNorm"', name, top=name) + layer(
        f"{name}_scale", 'type: "Scale"', name, param, top=name
    )


def text(fields, limits, *, normed=True, channels=32, in_place=True):
    """One convolution and what follows it; its input is read in the layout that it likes."""
    c = 3 if fields == FEW else channels
    return (
        f'input: "x" input_shape {{ dim: 2 dim: {c} dim: 40 dim: 40 }}\n'
        + conv("c", "x", fields)
        + (norm("c") if normed else "")
        + layer("r", limits, "c", top="c" if in_place else "r")
    )


def made(net_text, device="cpu", *, keep="outputs", phase="TEST", **options):
    net = Net(
        parse_text(net_text, NetParameter), phase, device=device, seed=3, keep_blobs=keep, **options
    )
    rng = np.random.default_rng(1)
    for name, blobs in net.params.items():
        for blob in blobs:
            if name.endswith(("_norm", "_scale")):
                blob.data[...] = rng.uniform(0.5, 1.5, blob.shape)
    net.blobs["x"].data[...] = rng.normal(size=net.blobs["x"].shape)
    return net


def pair(net_text, change=lambda net: None):
    """The outputs of a net on the device, by what runs its layers, and those of portable code."""
    fast, portable = made(net_text), made(net_text, "numpy", optimize=False)
    outputs = []
    for net in (fast, portable):
        change(net)
        with np.errstate(all="ignore"):
            net.forward()
        outputs.append(net.blobs[net.outputs[0]].cpu_data().copy())
    return {one.name: one for one in report(fast.plan)}, *outputs


def expect_close(got, want):
    assert np.abs(want).max() > 0
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())


@CONVOLUTIONS
@LIMITS
@pytest.mark.parametrize("normed", [False, True], ids=["alone", "normed"])
@pytest.mark.parametrize("in_place", [False, True], ids=["beside", "in place"])
def test_they_run_inside_our_kernels_of_convolutions(in_place, normed, limits, fields):
    layers, got, want = pair(text(fields, limits, normed=normed, in_place=in_place))

    assert layers["r"].part_of == "c"
    assert layers["c"].code.startswith(CODES[fields])
    expect_close(got, want)


@LIMITS
def test_zeros_behind_few_channels_stay(limits):
    fields = "num_output: 3 group: 3 kernel_size: 3 pad: 1"

    layers, got, want = pair(text(fields, limits, channels=3))

    assert layers["r"].part_of == "c"
    assert layers["c"].code.startswith("igemm" if limits == TURNED else "depthwise")
    expect_close(got, want)


@pytest.mark.parametrize("fields", [PIXELS, EACH], ids=["igemm", "depthwise"])
@LIMITS
def test_nan_and_infinities_are_those_of_the_layer(limits, fields):
    def spoil(net):
        bias = net.params["c"][1].data
        bias[:4] = np.nan, np.inf, -np.inf, 3e38
        net.blobs["x"].data[1, 7, 5, 6] = np.nan

    layers, got, want = pair(text(fields, limits), spoil)

    assert layers["r"].part_of == "c"
    assert np.isnan(want).any()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    rounded = 1e-6 if limits in (LEAKY, *CURVES) else 0  # what is large is no limit then
    np.testing.assert_allclose(got[0, :4], want[0, :4], rtol=rounded)


@pytest.mark.parametrize("fields", [PIXELS, EACH], ids=["igemm", "depthwise"])
def test_the_limits_change_no_bits_of_what_lies_within(fields):
    wide = 'type: "Clip" clip_param { min: -1e30 max: 1e30 }'
    layers, within, _ = pair(text(fields, CLIP))
    _, sums, _ = pair(text(fields, wide))

    assert layers["r"].part_of == "c"
    np.testing.assert_array_equal(within, np.clip(sums, np.float32(-1), np.float32(2)))


@pytest.mark.parametrize("added", [False, True], ids=["", "sum"])
@pytest.mark.parametrize(
    "fields",
    ["num_output: 32 kernel_size: 1", "num_output: 32 kernel_size: 3 stride: 2"],
    ids=["pixels", "strides"],
)
def test_a_slope_runs_inside_other_convolutions(fields, added):
    size = "dim: 40" if "size: 1" in fields else "dim: 19"
    other = f'input: "o" input_shape {{ dim: 2 dim: 32 {size} {size} }}\n' if added else ""
    behind = layer("s", 'type: "Eltwise" bottom: "o"', "c", top="s") if added else ""
    after = layer("r", LEAKY, "s" if added else "c")
    net_text = text(fields, LEAKY).rpartition("layer")[0] + behind + after

    def spoil(net):
        net.params["c"][1].data[:3] = np.nan, np.inf, -np.inf

    layers, got, want = pair(other + net_text, spoil)

    assert layers["r"].part_of == "c"
    assert layers["c"].code.startswith("igemm llvm")
    np.testing.assert_array_equal(got[:, :3], want[:, :3])
    expect_close(got[:, 3:], want[:, 3:])


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        (PIXELS, 'type: "ReLU" relu_param { negative_slope: -0.1 }'),
        (PIXELS, 'type: "ReLU6" relu6_param { negative_slope: 0.1 }'),
        (PIXELS, 'type: "Swish" swish_param { beta: 2 }'),
    ],
    ids=["slope below 0", "slope", "beta"],
)
def test_elsewhere_they_run_by_themselves(fields, limits):
    layers, got, want = pair(text(fields, limits))

    assert not layers["r"].part_of
    expect_close(got, want)


@LIMITS
@pytest.mark.parametrize("filters", [1, 12, 36])
def test_they_run_inside_implicit_gemm_of_any_number_of_filters(filters, limits):
    layers, got, want = pair(text(f"num_output: {filters} kernel_size: 1", limits))

    assert layers["r"].part_of == "c"
    assert layers["c"].code.startswith("narrow llvm" if filters == 1 else "igemm llvm")
    expect_close(got, want)


def test_pooling_behind_them_has_the_result_of_each_layer():
    pooled = layer("p", 'type: "Pooling"', "c", "pooling_param { kernel_size: 2 stride: 2 }")

    def spoil(net):
        net.params["c"][1].data[:3] = np.nan, np.inf, -np.inf

    for fields in (TILES, FEW):
        layers, got, want = pair(text(fields, CLIP, normed=False) + pooled, spoil)

        assert layers["r"].part_of == "c"
        np.testing.assert_array_equal(got[:, :3], want[:, :3])
        expect_close(got[:, 3:], want[:, 3:])


@CONVOLUTIONS
@LIMITS
def test_gradients_are_those_of_portable_code(limits, fields):
    loss = layer("loss", 'type: "Reduction"', "c", "loss_weight: 1 reduction_param { axis: 0 }")
    net_text = "force_backward: true\n" + text(fields, limits, normed=False) + loss
    options = {"keep": None, "phase": "TRAIN"}
    fast, portable = made(net_text, **options), made(net_text, "numpy", optimize=False, **options)

    for net in (fast, portable):
        net.forward()
        net.backward()

    expect_close(fast.blobs["c"].cpu_data(), portable.blobs["c"].cpu_data())
    for one, other in zip(fast.params["c"], portable.params["c"], strict=True):
        np.testing.assert_allclose(one.diff, other.diff, rtol=1e-4, atol=1e-3)


def block(then=RELU6, hidden=192, m=32):
    """A block of MobileNet V2: more channels, each by itself, few, and a sum with the input."""
    return (
        f'input: "x" input_shape {{ dim: 2 dim: {m} dim: 28 dim: 28 }}\n'
        + conv("up", "x", f"num_output: {hidden} kernel_size: 1")
        + norm("up")
        + layer("up_r", then, "up", top="up")
        + conv("each", "up", f"num_output: {hidden} group: {hidden} kernel_size: 3 pad: 1")
        + norm("each")
        + layer("each_r", then, "each", top="each")
        + conv("down", "each", f"num_output: {m} kernel_size: 1")
        + norm("down")
        + layer("sum", 'type: "Eltwise" bottom: "x"', "down")
    )


@pytest.mark.parametrize(
    "then",
    [RELU6, CLIP, 'type: "ReLU"', LEAKY, *CURVES],
    ids=["ReLU6", "Clip", "ReLU", "slope", "Swish", "HardSwish"],
)
def test_a_block_of_mobilenet_v2_is_two_steps(then):
    layers, got, want = pair(block(then))

    assert layers["up_r"].part_of == "up"
    assert layers["each"].code.startswith("separable")
    assert layers["sum"].part_of == "each"
    expect_close(got, want)


def test_a_rectifier_may_follow_the_sum():
    layers, got, want = pair(block() + layer("last", RELU6, "sum", top="sum"))

    assert layers["last"].part_of == "each"
    expect_close(got, want)


def test_a_sum_into_a_part_of_a_larger_image_has_the_result_of_each_layer():
    joined = layer("joined", 'type: "Concat" bottom: "sum"', "x")
    last = conv("last", "joined", "num_output: 32 kernel_size: 1")
    layers, got, want = pair(block() + joined + last)

    assert layers["each"].code.startswith("separable")
    expect_close(got, want)


def test_new_weights_and_another_batch_are_taken():
    fast, portable = made(block()), made(block(), "numpy", optimize=False)
    fast.forward()

    for net in (fast, portable):
        for name in ("up", "each", "down_scale"):
            net.params[name][0].data[...] *= -1.5
        net.blobs["x"].reshape(1, 32, 30, 26)
        net.blobs["x"].data[...] = np.random.default_rng(2).normal(size=(1, 32, 30, 26))
        net.forward()

    expect_close(fast.blobs["sum"].cpu_data(), portable.blobs["sum"].cpu_data())


@pytest.mark.parametrize("m", [16, 24, 40])
def test_blocks_of_few_channels_have_the_same_results(m):
    _, got, want = pair(block(m=m, hidden=4 * m))

    expect_close(got, want)


def test_a_net_rectifies_behind_a_convolution_and_a_sum():
    text = """
    input: "x" input_shape { dim: 2 dim: 16 dim: 6 dim: 7 }
    layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {
      num_output: 16 kernel_size: 1 weight_filler { type: "gaussian" std: 1 } } }
    layer { name: "s" type: "Eltwise" bottom: "c" bottom: "x" top: "s" }
    layer { name: "r" type: "ReLU" bottom: "s" top: "s" }
    """
    x = np.random.default_rng(3).normal(size=(2, 16, 6, 7)).astype(np.float32)
    x[1, 2, 3, 4] = np.nan
    message = parse_text(text, NetParameter)
    planned, portable = (
        Net(message, "TEST", device="cpu", seed=1, optimize=lowered, keep_blobs="outputs")
        for lowered in (True, False)
    )

    found, expected = (net.predict(x)["s"] for net in (planned, portable))

    assert np.isnan(found[1, :, 3, 4]).all()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
