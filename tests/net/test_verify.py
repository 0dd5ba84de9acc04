"""Net(verify=True): every Step beside portable code on the same inputs."""

import numpy as np
import pytest
from cuda_host import cuda_at
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import NetParameter, parse_text

TEXT = """
name: "verified"
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 3 dim: 12 dim: 12 } shape { dim: 4 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "drop" type: "Dropout" bottom: "pool" top: "pool" }
layer { name: "more" type: "Convolution" bottom: "pool" top: "more" convolution_param {
  num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "pool" bottom: "more" top: "sum" }
layer { name: "ip" type: "InnerProduct" bottom: "sum" top: "ip" inner_product_param {
  num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
CELLS = """
layer { name: "data" type: "DummyData" top: "data" top: "cont" dummy_data_param {
  shape { dim: 5 dim: 3 dim: 4 } shape { dim: 5 dim: 3 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "lstm" type: "LSTM" bottom: "data" bottom: "cont" top: "h"
  recurrent_param { num_output: 6 weight_filler { type: "xavier" } } }
layer { name: "end" type: "Reduction" bottom: "h" top: "loss" loss_weight: 1 }
"""


def verified(device, phase="TRAIN", text=TEXT, **options):
    net = Net(parse_text(text, NetParameter), phase, device=device, seed=1, verify=True, **options)
    if all(step is None for step in prepared(net).plan.steps()):
        pytest.skip(f"{device} has no Steps")
    return net


def prepared(net):
    net.reshape()
    return net


def step_of(net, name):
    entry = net.plan.entries[net.layer_names.index(name)]
    return entry.step if entry.group is None else entry.group.step


def spoil(monkeypatch, step, method, blob, *, diff=False):
    """Add the largest value of a blob to an element, after a method of a Step."""
    run = getattr(type(step), method)

    def wrong(self):
        run(self)
        if self is step:
            values = blob.mutable_cpu_diff() if diff else blob.mutable_cpu_data()
            values.reshape(-1)[7] += np.abs(values).max()

    monkeypatch.setattr(type(step), method, wrong)


@pytest.mark.parametrize("keep", [None, "outputs"])
@pytest.mark.parametrize("text", [TEXT, CELLS])
def test_right_steps_pass(backend, text, keep):
    net = verified(backend, text=text, keep_blobs=keep)

    for _ in range(4):
        net.clear_param_diffs()
        net.forward_backward()
        net.update()


@pytest.mark.parametrize("keep", [None, "outputs"])
def test_right_steps_pass_in_phase_test(backend, keep):
    net = verified(backend, "TEST", keep_blobs=keep)

    assert [net.forward() for _ in range(3)][-1] > 0


def test_means_that_are_zero_but_for_rounding_errors_are_no_fault():
    """A convolution of single pixels leaves the mean of what a norm has written at 0."""
    layers = [
        'layer { name: "data" type: "Input" top: "x" input_param { shape {'
        " dim: 2 dim: 16 dim: 9 dim: 11 } } }",
        'layer { name: "norm1" type: "BatchNorm" bottom: "x" top: "y" }',
        'layer { name: "conv" type: "Convolution" bottom: "y" top: "z" convolution_param {'
        ' num_output: 16 kernel_size: 1 bias_term: false weight_filler { type: "msra" } } }',
        'layer { name: "norm2" type: "BatchNorm" bottom: "z" top: "z" }',
    ]
    net = verified("cpu", text="\n".join(layers))
    net.set_input("x", np.random.default_rng(0).normal(size=(2, 16, 9, 11)))

    net.forward()

    assert np.abs(net.params["norm2"][0].data).max() < 1e-5


def test_the_results_are_those_of_an_ordinary_run(backend):
    plain = Net(parse_text(TEXT, NetParameter), "TRAIN", device=backend, seed=1)

    for net in (nets := [verified(backend), plain]):
        for _ in range(2):
            net.forward_backward()
            net.update()

    for one, other in zip(*(net.learnable_params for net in nets), strict=True):
        np.testing.assert_allclose(one.cpu_data(), other.cpu_data(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["conv", "pool", "ip"])
def test_a_wrong_forward_is_named(backend, monkeypatch, name):
    net = verified(backend, "TEST")
    net.forward()
    step, top = step_of(net, name), net.blobs[name]
    if step is None:
        pytest.skip(f"{backend} has no Step for {name}")
    spoil(monkeypatch, step, "forward", top)

    names = [type(step).__name__, step.code, f"'{name}'"]
    with expect_error(NetError, ErrorCode.FAILED, mentions=names, layer=name) as caught:
        net.forward()

    details = caught.value.details
    assert details["difference"] > 100 * details["tolerance"]
    assert np.ravel_multi_index(details["index"], top.shape) == 7
    assert details["step"] == type(step).__name__
    assert details["implementation"] == step.code
    assert any("bottom" in text for text in details["read"])
    assert caught.value.place.endswith(", forward")


@pytest.mark.parametrize(
    ("layer", "blob", "result"),
    [("ip", "sum", "gradient of bottom 'sum'"), ("more", 0, "gradient of parameter 0 of layer")],
)
def test_a_wrong_gradient_is_named(backend, monkeypatch, layer, blob, result):
    net = verified(backend)
    net.forward_backward()
    entry = net.plan.entries[net.layer_names.index(layer)]
    step = entry.executed_step
    if step is None or step.portable_gradient:
        pytest.skip(f"{backend} has no gradient Step for {layer}")
    spoiled = net.params[layer][blob] if isinstance(blob, int) else net.blobs[blob]
    spoil(monkeypatch, step, "backward", spoiled, diff=True)

    with expect_error(NetError, ErrorCode.FAILED, mentions=result, layer=layer) as caught:
        net.forward_backward()

    assert caught.value.place.endswith(", backward")
    assert caught.value.details["difference"] > caught.value.details["tolerance"]


def test_a_value_that_is_not_finite_is_named(backend, monkeypatch):
    net = verified(backend, "TEST")
    net.forward()
    step, top = step_of(net, "ip"), net.blobs["ip"]
    if step is None:
        pytest.skip(f"{backend} has no Step for it")
    run = type(step).forward

    def wrong(self):
        run(self)
        top.mutable_cpu_data()[0, 0] = np.nan

    monkeypatch.setattr(type(step), "forward", wrong)

    with expect_error(NetError, ErrorCode.FAILED, layer="ip", index=(0, 0)):
        net.forward()


def test_the_tolerance_and_the_verification_can_be_set(backend, monkeypatch):
    net = verified(backend, "TEST")
    net.forward()
    step = step_of(net, "ip")
    if step is None:
        pytest.skip(f"{backend} has no Step for it")
    spoil(monkeypatch, step, "forward", net.blobs["ip"])

    net.verify = 1e6
    net.forward()
    net.verify = False
    net.forward()
    assert net.verify is False
    net.verify = True
    with expect_error(NetError, ErrorCode.FAILED):
        net.forward()


def test_another_size_and_another_device_are_verified(backend):
    text = TEXT.replace("DummyData", "Input").replace("dummy_data_param", "input_param")
    text = text.replace(
        'data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 }', ""
    )
    net = verified(backend, text=text)

    for count in (2, 5):
        net.blobs["data"].reshape(count, 3, 12, 12)
        net.blobs["label"].reshape(count)
        net.blobs["data"].data[...] = np.linspace(-1, 1, net.blobs["data"].count).reshape(
            count, 3, 12, 12
        )
        net.forward_backward()
    net.to("numpy")
    net.forward_backward()

    assert net.plan.observer is not None


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_a_hidden_state_of_earlier_passes_is_verified_with(kind):
    text = f"""
    layer {{ name: "in" type: "Input" top: "x" top: "cont" input_param {{
      shape {{ dim: 4 dim: 2 dim: 5 }} shape {{ dim: 4 dim: 2 }} }} }}
    layer {{ name: "cell" type: "{kind}" bottom: "x" bottom: "cont" top: "h" recurrent_param {{
      num_output: 6 weight_filler {{ type: "gaussian" std: 0.5 }} }} }}"""
    net = Net(parse_text(text, NetParameter), "TEST", device="cpu", seed=1)
    net.blobs["x"].data = np.linspace(-1, 1, 40).reshape(4, 2, 5)
    net.blobs["cont"].data = 1
    net.forward()
    net.verify = True

    net.forward()
    roll_back = net.savepoint()
    net.forward()
    roll_back()
    net.forward()

    assert net.plan.observer is not None


def test_right_steps_of_a_gpu_pass():
    net = Net(parse_text(TEXT, NetParameter), "TRAIN", device=cuda_at("host"), seed=1, verify=True)

    for _ in range(4):
        net.clear_param_diffs()
        net.forward_backward()
        net.update()

    assert any(step is not None for step in net.plan.steps())
    assert "layers are observed" in net.execution.passes.capture_blocker()
