"""Nets of phase TEST that multiply in bfloat16 on ``cpu``, or read weights in half."""

import subprocess
import sys

import numpy as np
import pytest
from expect_error import expect_error
from narrow_values import CASES_OF, kept

from demitasse import Net
from demitasse.backends.kernels.language import status
from demitasse.backends.kernels.language.target import has_amx, has_bf16, vector_width
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.net.build import NARROW_DTYPES
from demitasse.plan.report import report
from demitasse.testing import make_layer

THERE = status().ready and has_bf16(vector_width())
BF16 = pytest.mark.skipif(not THERE, reason="cpu has no bfloat16 on this processor")
HALF = pytest.mark.skipif(not status().ready, reason=status().reason)
NARROW = pytest.mark.parametrize(
    "dtype", [pytest.param("bfloat16", marks=BF16), pytest.param("float16", marks=HALF)]
)


@pytest.fixture(params=["pairs", "tiles"])
def code(request, monkeypatch):
    """Name of the instructions that multiply in bfloat16: pairs of channels, or AMX's tiles."""
    if request.param == "pairs":
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
        return "llvm:avx512_bf16"
    if not has_amx(vector_width()):
        pytest.skip("the processor has no AMX")
    return "llvm:amx_bf16"


NET = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param {
  shape { dim: 2 dim: 3 dim: 30 dim: 30 } } }
layer { name: "first" type: "Convolution" bottom: "data" top: "first" convolution_param {
  num_output: 32 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "wide" type: "Convolution" bottom: "first" top: "wide" convolution_param {
  num_output: 48 kernel_size: 1 weight_filler { type: "xavier" }
  bias_filler { type: "constant" value: 0.1 } } }
layer { name: "bn" type: "BatchNorm" bottom: "wide" top: "wide" }
layer { name: "scale" type: "Scale" bottom: "wide" top: "wide" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "wide" top: "wide" }
layer { name: "back" type: "Convolution" bottom: "wide" top: "back" convolution_param {
  num_output: 32 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "first" bottom: "back" top: "sum" }
layer { name: "relu2" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "half" type: "Convolution" bottom: "sum" top: "half" convolution_param {
  num_output: 64 kernel_size: 3 stride: 2 group: 2 weight_filler { type: "xavier" } } }
layer { name: "clip" type: "Clip" bottom: "half" top: "half" clip_param { min: 0 max: 6 } }
layer { name: "prelu" type: "Convolution" bottom: "half" top: "prelu" convolution_param {
  num_output: 33 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "slopes" type: "PReLU" bottom: "prelu" top: "prelu" }
layer { name: "ip" type: "InnerProduct" bottom: "prelu" top: "ip" inner_product_param {
  num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""


def made(device="cpu", text=NET, phase="TEST", **options):
    net = Net(parse_text(text, NetParameter), phase, device=device, seed=3, **options)
    for blob, value in zip(
        net.params.get("bn", ()) or net.params.get("norm", ()), (0.25, 2.0, 1.0), strict=False
    ):
        blob.mutable_cpu_data()[...] = value
    shape = net.blobs["data"].shape
    net.set_input("data", np.random.default_rng(5).normal(size=shape).astype(np.float32))
    return net


def expect_near(got, want, rtol=1e-2):
    assert np.abs(got - want).max() <= rtol * np.abs(want).max()


@BF16
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize("pads", ["pad_b: 1 pad_r: 1", "pad_t: 2 pad_l: 1", "pad_l: 1 pad_b: 5"])
@pytest.mark.parametrize("window", ["kernel_size: 3", "kernel_size: 5 stride: 2 group: 2"])
def test_pads_after_the_axes_differ_from_those_before(window, pads, kind):
    half = NET[NET.index('layer { name: "half"') : NET.index('layer { name: "clip"')]
    other = half.replace("kernel_size: 3 stride: 2 group: 2", f"{window} {pads}")
    text = NET.replace(half, other.replace('"Convolution"', f'"{kind}"'))

    narrow, single = (made(text=text, **options) for options in ({"dtype": "bfloat16"}, {}))
    for net in (narrow, single):
        net.forward()

    expect_near(narrow.blobs["half"].data, single.blobs["half"].data, rtol=2e-2)


def codes(net):
    return [layer.code for layer in report(net.plan)]


@NARROW
@pytest.mark.parametrize("keep_blobs", [None, "outputs"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_net_computes_nearly_the_same(threads, keep_blobs, dtype, code):
    with settings.override(threads=threads):
        plain, narrow = (made(dtype=one, keep_blobs=keep_blobs) for one in ("float32", dtype))
        for net in (plain, narrow, narrow):
            net.forward()

    assert narrow.storage == NARROW_DTYPES[dtype]
    code, fewest = {"bfloat16": (code, 3), "float16": ("_half", 1)}[dtype]
    assert sum(code in one for one in codes(narrow)) >= fewest
    assert not any(code in one for one in codes(plain))
    for name in narrow.outputs if keep_blobs else ("wide", "sum", "half", "prelu", "ip", "prob"):
        expect_near(narrow.blobs[name].cpu_data(), plain.blobs[name].cpu_data())


@BF16
@pytest.mark.usefixtures("code")
def test_a_convolution_multiplies_what_was_rounded():
    net = made(dtype="bfloat16")
    net.forward()
    x, w = (kept(one, "bfloat16") for one in (net.blobs["sum"].cpu_data(), weights(net, "half")))

    exact = made("numpy")
    exact.blobs["sum"].data[...] = x
    exact.params["half"][0].mutable_cpu_data()[...] = w
    exact.params["half"][1].mutable_cpu_data()[...] = net.params["half"][1].cpu_data()
    exact.forward(start="half", end="clip")

    got, want = (one.blobs["half"].cpu_data() for one in (net, exact))
    np.testing.assert_array_equal(got, kept(got, "bfloat16"))
    assert (np.abs(got - want) <= 2.0**-8 * np.abs(want) + 1e-6).all()


def weights(net, name):
    return net.params[name][0].cpu_data()


ROWS = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: %d dim: 1031 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {
  num_output: 70 weight_filler { type: "gaussian" std: 0.03 }
  bias_filler { type: "constant" value: 0.5 } } }
layer { name: "then" type: "%s" bottom: "ip" top: "ip" }
"""


@BF16
@pytest.mark.parametrize("then", ["ReLU", "Sigmoid", "Dropout"])
@pytest.mark.parametrize("rows", [1, 3, 8, 40])
def test_an_inner_product_multiplies_what_was_rounded(rows, then, code):
    with settings.override(threads=2):
        net = made(text=ROWS % (rows, then), dtype="bfloat16", keep_blobs="outputs")
        net.forward()

    x, w = (kept(one, "bfloat16") for one in (net.blobs["data"].cpu_data(), weights(net, "ip")))
    sums = x.astype(float) @ w.astype(float).T + 0.5
    want = {"ReLU": np.maximum(sums, 0), "Sigmoid": 1 / (1 + np.exp(-sums))}.get(then, sums)
    assert any(code in one for one in codes(net))
    expect_near(net.blobs["ip"].cpu_data(), want, 1e-5)


@HALF
@pytest.mark.parametrize("then", ["ReLU", "ReLU6", "Sigmoid", "Dropout"])
@pytest.mark.parametrize("rows", [1, 3, 4, 40])
def test_an_inner_product_of_few_rows_reads_weights_in_half(rows, then):
    with settings.override(threads=2):
        net = made(text=ROWS % (rows, then), dtype="float16", keep_blobs="outputs")
        net.forward()

    half = any("few rows" in code and "_half" in code for code in codes(net))
    w = kept(weights(net, "ip"), "half") if half else weights(net, "ip")
    sums = net.blobs["data"].cpu_data().astype(float) @ w.astype(float).T + 0.5
    functions = {
        "ReLU": np.maximum(sums, 0),
        "ReLU6": np.clip(sums, 0, 6),
        "Sigmoid": 1 / (1 + np.exp(-sums)),
    }
    assert half == (rows < 40)
    expect_near(net.blobs["ip"].cpu_data(), functions.get(then, sums), 1e-6)


@HALF
@pytest.mark.parametrize(("value", "told"), [(70000.0, True), (65504.0, False), (np.inf, False)])
def test_a_weight_that_is_too_large_for_half_is_warned_of_once(caplog, value, told):
    net = made(text=ROWS % (1, "ReLU"), dtype="float16")
    net.set_input("data", np.ones((1, 1031), np.float32))

    for _ in range(2):
        net.params["ip"][0].mutable_cpu_data()[0, :2] = value
        net.forward()

    found = [one.args for one in caplog.records if "too large" in one.getMessage()]
    assert found == [(2, 70 * 1031, "ip[0]", "half")] * told
    assert np.isinf(net.blobs["ip"].cpu_data()[0, 0]) == (value != 65504)


SEPARABLE = """
layer { name: "data" type: "Input" top: "data" input_param {
  shape { dim: 2 dim: 3 dim: 56 dim: 56 } } }
layer { name: "first" type: "Convolution" bottom: "data" top: "first" convolution_param {
  num_output: 64 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "each" type: "Convolution" bottom: "first" top: "each" convolution_param {
  num_output: 64 group: 64 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "each" top: "each" }
layer { name: "wide" type: "Convolution" bottom: "each" top: "wide" convolution_param {
  num_output: 128 kernel_size: 1 weight_filler { type: "xavier" } } }
"""


@BF16
@pytest.mark.parametrize("keep_blobs", [None, "outputs"])
def test_a_depthwise_convolution_and_pixels_behind_it(keep_blobs, code):
    net = made(text=SEPARABLE, dtype="bfloat16", keep_blobs=keep_blobs)
    plain = made(text=SEPARABLE)
    for one in (net, plain):
        one.forward()

    kind = "separable" if keep_blobs else "amx" if "amx" in code else "igemm"
    assert any(f"{kind} {code}" in one for one in codes(net))
    expect_near(net.blobs["wide"].cpu_data(), plain.blobs["wide"].cpu_data())


@NARROW
@pytest.mark.usefixtures("code")
def test_weights_that_change_are_rounded_again(dtype):
    net = made(dtype=dtype, keep_blobs="outputs")
    net.forward()
    before = np.copy(net.blobs["prob"].cpu_data())
    for name in ("wide", "half", "ip"):
        net.params[name][0].mutable_cpu_data()[...] *= -1

    net.forward()

    other = made(dtype=dtype, keep_blobs="outputs")
    for name in ("wide", "half", "ip"):
        other.params[name][0].mutable_cpu_data()[...] *= -1
    other.forward()
    expect_near(net.blobs["prob"].cpu_data(), other.blobs["prob"].cpu_data(), 1e-5)
    assert np.abs(net.blobs["prob"].cpu_data() - before).max() > 0.01


@NARROW
def test_weights_that_change_before_each_pass_are_rounded_in_each(dtype):
    net = made(text=ROWS % (2, "ReLU"), dtype=dtype)
    for turn in range(6):
        net.params["ip"][0].data = np.full((70, 1031), turn / 1031)
        net.blobs["data"].data = np.ones((2, 1031))
        net.forward()
        np.testing.assert_allclose(net.blobs["ip"].cpu_data(), turn + 0.5, rtol=1e-2)


BRANCHES = """
layer { name: "data" type: "Input" top: "data" input_param {
  shape { dim: 2 dim: 3 dim: 40 dim: 44 } } }
layer { name: "first" type: "Convolution" bottom: "data" top: "first" convolution_param {
  num_output: 32 kernel_size: 5 stride: 2 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "first" top: "first" }
layer { name: "pool" type: "Pooling" bottom: "first" top: "pool" pooling_param {
  pool: MAX kernel_size: 3 stride: 2 } }
layer { name: "one" type: "Convolution" bottom: "pool" top: "one" convolution_param {
  num_output: 48 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "each" type: "Convolution" bottom: "pool" top: "each" convolution_param {
  num_output: 32 group: 32 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu2" type: "ReLU" bottom: "each" top: "each" }
layer { name: "three" type: "Convolution" bottom: "each" top: "three" convolution_param {
  num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "joined" type: "Concat" bottom: "one" bottom: "three" top: "joined" }
layer { name: "norm" type: "BatchNorm" bottom: "joined" top: "norm" }
layer { name: "factors" type: "Scale" bottom: "norm" top: "norm" scale_param { bias_term: true } }
layer { name: "relu4" type: "ReLU" bottom: "norm" top: "norm" }
layer { name: "back" type: "Convolution" bottom: "norm" top: "back" convolution_param {
  num_output: 64 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "joined" bottom: "back" top: "sum" }
layer { name: "relu3" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "larger" type: "Deconvolution" bottom: "sum" top: "larger" convolution_param {
  num_output: 32 kernel_size: 4 stride: 2 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "gate" type: "InnerProduct" bottom: "larger" top: "gate" inner_product_param {
  num_output: 32 weight_filler { type: "xavier" } } }
layer { name: "open" type: "Sigmoid" bottom: "gate" top: "gate" }
layer { name: "gated" type: "Scale" bottom: "larger" bottom: "gate" top: "gated"
  scale_param { axis: 0 } }
layer { name: "relu5" type: "ReLU" bottom: "gated" top: "gated" }
layer { name: "after" type: "Convolution" bottom: "gated" top: "after" convolution_param {
  num_output: 32 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "odd" type: "Convolution" bottom: "sum" top: "odd" convolution_param {
  num_output: 40 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "turned" type: "Permute" bottom: "odd" top: "turned"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "mean" type: "Pooling" bottom: "sum" top: "mean" pooling_param {
  pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "mean" top: "ip" inner_product_param {
  num_output: 20 weight_filler { type: "xavier" } } }
"""
READ = (
    "first", "pool", "one", "three", "joined", "norm", "back", "sum", "larger", "gated", "after",
    "odd", "turned", "mean", "ip",
)  # fmt: skip


@BF16
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("keep_blobs", [None, "outputs"])
def test_all_that_reads_a_blob_finds_its_values(keep_blobs, threads):
    with settings.override(threads=threads):
        plain, narrow = (
            made(text=BRANCHES, dtype=one, keep_blobs=keep_blobs) for one in ("float32", "bfloat16")
        )
        for _ in range(6):  # replayed at last
            for net in (plain, narrow):
                net.forward()

    for name in ("turned", "ip", "after") if keep_blobs else READ:
        expect_near(narrow.blobs[name].cpu_data(), plain.blobs[name].cpu_data(), 2e-2)


@BF16
def test_blobs_between_products_of_bfloat16_are_in_bfloat16(code):
    net = made(text=BRANCHES, dtype="bfloat16")
    net.forward()

    def is_kept(name):
        values = net.blobs[name].cpu_data()
        return np.array_equal(values, kept(values, "bfloat16"))

    want = {*READ} - {"larger", "after", "odd", "turned", "mean", "ip"}
    if "amx" not in code:  # others also read or write float32
        want = {"pool", "one", "joined"}
    assert {name for name in READ if is_kept(name)} == want


PLANES = """
layer { name: "data" type: "Input" top: "data" input_param {
  shape { dim: 2 dim: 32 dim: 4 dim: 9 dim: 10 } } }
layer { name: "one" type: "Convolution" bottom: "data" top: "one" convolution_param {
  num_output: 32 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "two" type: "Convolution" bottom: "one" top: "two" convolution_param {
  num_output: 48 kernel_size: 3 stride: 2 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "again" type: "Convolution" bottom: "one" top: "again" convolution_param {
  num_output: 48 kernel_size: 1 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "two" bottom: "again" top: "sum" }
layer { name: "groups" type: "Convolution" bottom: "sum" top: "groups" convolution_param {
  num_output: 96 kernel_size: 2 group: 3 weight_filler { type: "xavier" } } }
"""


@BF16
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("keep_blobs", [None, "outputs"])
def test_images_of_three_axes_have_the_same_values(keep_blobs):
    plain, narrow = (
        made(text=PLANES, dtype=one, keep_blobs=keep_blobs) for one in ("float32", "bfloat16")
    )
    for net in (plain, narrow):
        for _ in range(6):
            net.forward()

    expect_near(narrow.blobs["groups"].cpu_data(), plain.blobs["groups"].cpu_data(), 2e-2)


@BF16
@pytest.mark.usefixtures("code")
def test_a_part_of_a_net_reads_what_was_written_by_hand():
    net, plain = (made(text=BRANCHES, dtype=one) for one in ("bfloat16", "float32"))
    for one in (net, plain):
        one.forward()
    values = np.random.default_rng(1).normal(size=net.blobs["joined"].shape)
    for one in (net, plain):
        one.blobs["joined"].mutable_cpu_data()[...] = values
        one.forward(start="norm")

    expect_near(net.blobs["sum"].cpu_data(), plain.blobs["sum"].cpu_data(), 2e-2)
    np.testing.assert_array_equal(net.blobs["joined"].cpu_data(), values.astype(np.float32))


GATED = """
layer { name: "data" type: "Input" top: "data" input_param {
  shape { dim: 2 dim: 3 dim: 30 dim: 30 } } }
layer { name: "gate" type: "Input" top: "gate" input_param { shape { dim: 2 dim: 32 } } }
layer { name: "one" type: "Convolution" bottom: "data" top: "one" convolution_param {
  num_output: 32 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "two" type: "Convolution" bottom: "data" top: "two" convolution_param {
  num_output: 32 kernel_size: 3 weight_filler { type: "xavier" } } }
LAYER
layer { name: "last" type: "Convolution" bottom: "one" top: "last" convolution_param {
  num_output: 32 kernel_size: 1 weight_filler { type: "xavier" } } }
"""


@BF16
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("keep_blobs", [None, "outputs"])
@pytest.mark.parametrize(
    "layer",
    [
        'layer { name: "scale" type: "Scale" bottom: "one" bottom: "gate" top: "one" '
        "scale_param { axis: 0 } }",
        'layer { name: "elu" type: "ELU" bottom: "one" top: "one" }',
        'layer { name: "lrn" type: "LRN" bottom: "one" top: "norm" } '
        'layer { name: "bn" type: "BatchNorm" bottom: "norm" top: "norm" } '
        'layer { name: "scale" type: "Scale" bottom: "norm" top: "norm" } '
        'layer { name: "relu" type: "ReLU" bottom: "norm" top: "norm" }',
    ],
)
def test_layers_in_place_read_what_they_overwrite(layer, keep_blobs):
    text = GATED.replace("LAYER", layer).replace('"one" top: "last"', '"TOP" top: "last"')
    text = text.replace("TOP", "norm" if "norm" in layer else "one")
    plain, narrow = (
        made(text=text, dtype=one, keep_blobs=keep_blobs) for one in ("float32", "bfloat16")
    )
    for net in (plain, narrow):
        net.set_input("gate", np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32))
        for _ in range(6):
            net.forward()

    expect_near(narrow.blobs["last"].cpu_data(), plain.blobs["last"].cpu_data(), 2e-2)


IN_PLACE = """
layer { name: "data" type: "Input" top: "data" input_param {
  shape { dim: 2 dim: 2100 dim: 5 dim: 5 } } }
layer { name: "one" type: "Convolution" bottom: "data" top: "one" convolution_param {
  num_output: 40 kernel_size: 1 weight_filler { type: "gaussian" std: 0.02 } } }
layer { name: "two" type: "Convolution" bottom: "data" top: "two" convolution_param {
  num_output: 40 kernel_size: 1 weight_filler { type: "gaussian" std: 0.02 } } }
layer { name: "sum" type: "Eltwise" bottom: "one" bottom: "two" top: "TOP" }
layer { name: "relu" type: "ReLU" bottom: "TOP" top: "TOP" }
"""
"""Two blocks of sums, the first of which is written where the sum will be."""


@BF16
@pytest.mark.parametrize("top", ["one", "sum"])
def test_sums_in_place_are_added_once(top):
    text = IN_PLACE.replace("TOP", top)
    plain, narrow = (
        made(text=text, dtype=one, keep_blobs="outputs") for one in ("float32", "bfloat16")
    )

    for net in (plain, narrow):
        net.forward()

    expect_near(narrow.blobs[top].cpu_data(), plain.blobs[top].cpu_data())


@NARROW
def test_a_net_moves_to_numpy_and_back(dtype):
    net, plain = made(dtype=dtype), made("numpy")
    net.forward()
    want = np.copy(net.blobs["prob"].cpu_data())

    net.to("numpy")
    for one in (net, plain):
        one.forward()

    np.testing.assert_array_equal(net.blobs["prob"].cpu_data(), plain.blobs["prob"].cpu_data())
    net.to("cpu")
    net.forward()
    np.testing.assert_array_equal(net.blobs["prob"].cpu_data(), want)


@NARROW
def test_other_shapes_and_clones_compute_the_same(dtype):
    net = made(dtype=dtype)
    net.forward()
    first = np.copy(net.blobs["prob"].cpu_data()[:1])
    image = np.copy(net.blobs["data"].cpu_data()[:1])

    for one in (net, net.clone()):
        one.blobs["data"].reshape(image.shape)
        one.set_input("data", image)
        one.forward()
        expect_near(one.blobs["prob"].cpu_data(), first, 1e-5)


@BF16
def test_a_net_is_verified_within_the_rounding_of_the_device_that_it_moves_to():
    net = made(dtype="bfloat16")
    net.to("numpy")
    net.verify = True

    net.to("cpu")
    net.forward()

    assert net.plan.observer is not None


@NARROW
def test_every_step_is_verified_within_the_rounding(dtype):
    made(dtype=dtype, verify=True).forward()


@NARROW
@pytest.mark.parametrize("name", [name for name, cases in CASES_OF.items() if cases])
def test_layers_of_all_types_run(name, dtype):
    if name == "DetectionEvaluate":
        pytest.skip("evaluates with float32 alone")
    for case in CASES_OF[name]:
        plain, narrow = (
            make_layer(case.text, case.bottoms, phase="TEST", device=Device("cpu"),
                       dtype="float32", storage=storage).forward()
            for storage in ("float", NARROW_DTYPES[dtype])
        )  # fmt: skip
        for a, b in zip(plain, narrow, strict=True):
            finite = np.abs(a[np.isfinite(a)]).max(initial=1.0)
            np.testing.assert_allclose(b, a, rtol=0, atol=2e-2 * finite, err_msg=str(case))


@NARROW
def test_nets_that_are_trained_are_refused(dtype):
    with expect_error(ConfigError, ErrorCode.UNSUPPORTED, field="storage", mentions="TEST"):
        made(phase="TRAIN", dtype=dtype)


@NARROW
def test_there_is_no_backward_pass(dtype):
    net = made(dtype=dtype)
    net.forward()

    kind = NARROW_DTYPES[dtype]
    with expect_error(NetError, ErrorCode.UNSUPPORTED, field="storage", got=kind):
        net.backward()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_without_compiled_kernels_it_is_refused(dtype):
    how = {"field": "storage", "got": NARROW_DTYPES[dtype], "mentions": "AVX512_BF16"}
    with settings.override(jit=False), expect_error(ConfigError, ErrorCode.UNSUPPORTED, **how):
        made(dtype=dtype)


REFUSED = """
from demitasse import Net
from demitasse.errors import ConfigError
text = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 } } }'
try:
    Net(text, "TEST", device="cpu", dtype="bfloat16")
except ConfigError as error:
    print(error.code.name, error.details["got"])
"""


@pytest.mark.parametrize("most", ["AVX2", "AVX512_CORE"])
def test_without_the_instructions_it_is_refused(most, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", most)

    done = subprocess.run(
        [sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.split() == ["UNSUPPORTED", "bfloat16"]
