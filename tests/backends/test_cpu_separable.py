"""Depthwise convolutions on device cpu that run as one with the pointwise ones behind them."""

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.engine import engine
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.report import report

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())


WIDE = pytest.mark.skipif(
    bool(slow_reason()) or engine().tuning.width < 16,
    reason="other layouts are chosen without AVX-512",
)


def layer(name, kind, bottom, top, param=""):
    return f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{top}" {param} }}\n'


def conv(name, bottom, fields):
    filler = 'weight_filler { type: "msra" } bias_filler { type: "uniform" }'
    return layer(name, "Convolution", bottom, name, f"convolution_param {{ {fields} {filler} }}")


def norm(name, kind="ReLU"):
    return (
        layer(f"{name}_norm", "BatchNorm", name, name)
        + layer(f"{name}_scale", "Scale", name, name, "scale_param { bias_term: true }")
        + layer(f"{name}_act", kind, name, name)
    )


def pair(name, bottom, m, c=32, *, stride=1, kind="ReLU"):
    each, pixels = f"{name}_each", f"{name}_pixels"
    window = f"num_output: {c} group: {c} kernel_size: 3 pad: 1 stride: {stride}"
    return (
        conv(each, bottom, window)
        + norm(each, kind)
        + conv(pixels, each, f"num_output: {m} kernel_size: 1")
        + norm(pixels)
    )


INPUT = (
    'layer { name: "x" type: "Input" top: "x" '
    "input_param { shape { dim: 2 dim: 3 dim: 56 dim: 56 } } }\n"
)
FIRST = INPUT + conv("first", "x", "num_output: 32 kernel_size: 3 pad: 1 stride: 2")
NET = (
    FIRST
    + norm("first")
    + pair("a", "first", 64)
    + pair("b", "a_pixels", 64, 64, stride=2)
    + pair("c", "b_pixels", 96, 64)
)


def made(text=NET, device="cpu", keep="outputs", phase="TEST", **options):
    net = Net(
        parse_text(text, NetParameter), phase, device=device, seed=3, keep_blobs=keep, **options
    )
    rng = np.random.default_rng(1)
    for blobs in net.params.values():
        for blob in blobs:
            if blob.shape == (1,) or len(blob.shape) == 1:
                blob.data[...] = rng.uniform(0.5, 1.5, blob.shape)
    net.blobs["x"].data[...] = rng.normal(size=net.blobs["x"].shape)
    return net


def codes(net):
    net.forward()
    return {one.name: one.code for one in report(net.plan)}


def runs_as_one(net, name="a"):
    return codes(net)[f"{name}_each"].startswith("separable llvm:")


def expect_close(one, other, name):
    got, want = (net.blobs[name].cpu_data() for net in (one, other))
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()
    assert np.abs(want).max() > 0


def test_each_pair_is_one_step():
    found = codes(made())

    for name in "abc":
        code = found[f"{name}_each"]
        assert code.startswith("separable llvm:")
        assert code.endswith(" + BatchNorm + Scale + ReLU + Conv + BatchNorm + Scale + ReLU")


@pytest.mark.parametrize("last", ["a", "c"])
def test_results_are_those_of_portable_code(last):
    text = NET if last == "c" else FIRST + norm("first") + pair("a", "first", 64)
    fast, portable = made(text), made(text, "numpy", optimize=False)

    for net in (fast, portable):
        for _ in range(4):
            net.blobs["x"].mutable_cpu_data()
            net.forward()

    assert runs_as_one(fast)
    expect_close(fast, portable, f"{last}_pixels")


def test_convolutions_alone_run_as_one_too():
    text = (
        FIRST
        + conv("a_each", "first", "num_output: 32 group: 32 kernel_size: 3 pad: 1 bias_term: false")
        + conv("a_pixels", "a_each", "num_output: 64 kernel_size: 1")
    )
    fast, portable = made(text), made(text, "numpy", optimize=False)

    portable.forward()

    assert codes(fast)["a_each"].endswith(" + Conv")
    expect_close(fast, portable, "a_pixels")


def test_new_weights_are_taken():
    fast, portable = made(), made(NET, "numpy", optimize=False)
    fast.forward()

    for net in (fast, portable):
        for name in ("b_each", "b_pixels", "a_each_scale", "c_pixels_norm"):
            for blob in net.params[name]:
                blob.data[...] *= -1.5 if name.startswith("b") else 1.5
        net.forward()

    expect_close(fast, portable, "c_pixels")


def test_a_batch_of_another_size_is_taken():
    fast, portable = made(), made(NET, "numpy", optimize=False)
    fast.forward()

    for net in (fast, portable):
        net.blobs["x"].reshape(1, 3, 60, 44)
        net.blobs["x"].data[...] = np.random.default_rng(2).normal(size=(1, 3, 60, 44))
        net.forward()

    expect_close(fast, portable, "c_pixels")


def test_what_lies_between_is_computed_where_it_is_kept():
    kept, whole = made(keep=["a_each"]), made(keep=None)

    assert not runs_as_one(kept)
    assert not runs_as_one(whole)
    assert runs_as_one(kept, "b")
    expect_close(kept, whole, "a_each")


@WIDE
def test_results_of_one_image_are_those_of_portable_code():
    text = NET.replace("dim: 2", "dim: 1", 1)
    fast, portable = made(text), made(text, "numpy", optimize=False)

    for net in (fast, portable):
        for _ in range(4):
            net.blobs["x"].mutable_cpu_data()
            net.forward()

    expect_close(fast, portable, "c_pixels")


@WIDE
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_another_layer_may_read_an_image_between_two_pairs(first):
    text = NET.replace("dim: 2", "dim: 1", 1)
    head = conv("head", "a_pixels", "num_output: 32 kernel_size: 1")
    begin, rest = text.split('layer { name: "b_each"')
    rest = 'layer { name: "b_each"' + rest
    text = begin + (head + rest if first else rest + head)
    fast, portable = made(text), made(text, "numpy", optimize=False)

    for net in (fast, portable):
        for _ in range(4):
            net.blobs["x"].mutable_cpu_data()
            net.forward()

    for name in ("c_pixels", "head"):
        expect_close(fast, portable, name)


def test_it_is_computed_where_two_layers_read_it():
    text = NET + layer("last", "Pooling", "b_each", "last", "pooling_param { kernel_size: 2 }")
    net = made(text)

    assert not runs_as_one(net, "b")
    assert runs_as_one(net, "a")


def test_gradients_have_the_result_of_each_layer():
    text = NET + layer("loss", "Reduction", "c_pixels", "loss", "loss_weight: 1")
    net = made(text, keep=None, phase="TRAIN")

    assert not runs_as_one(net)


@pytest.mark.parametrize("kind", ["PReLU", "TanH"])
def test_other_activations_keep_them_apart(kind):
    text = FIRST + norm("first") + pair("a", "first", 64, kind=kind)
    fast, portable = made(text), made(text, "numpy", optimize=False)

    portable.forward()

    assert not runs_as_one(fast)
    expect_close(fast, portable, "a_pixels")


def test_what_is_never_written_takes_no_buffer():
    net = made()
    net.forward()
    net.forward()

    slots = {id(one): one for blob in net.blobs.values() if (one := blob.data_memory.assignment)}
    never = {blob: net.blobs[blob].data_memory.assignment.slot for blob in ("a_each", "c_each")}
    assert all(not slot.arrays for slot in never.values())
    filled = {id(one.slot) for one in slots.values() if one.slot.arrays}
    assert len(filled) == 2
