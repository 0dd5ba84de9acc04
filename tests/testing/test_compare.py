"""Comparing devices: same results pass, a fault is named where it begins."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net, testing
from demitasse.backends import ops
from demitasse.backends.step import Step
from demitasse.backends.test_devices import ReadonlyBackend
from demitasse.errors import DeviceError, ErrorCode, NetError
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.testing.error_stats import error_stats

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 3 dim: 4 } } }
layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "h"
        inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "h" top: "h" }
layer { name: "drop" type: "Dropout" bottom: "h" top: "h" }
layer { name: "out" type: "InnerProduct" bottom: "h" top: "y"
        inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "loss" }
"""
INPUTS = {"x": np.random.default_rng(0).standard_normal((3, 4)), "t": np.array([0, 1, 1])}


@pytest.fixture
def net():
    return Net(parse_text(NET, NetParameter), "TRAIN", device="numpy", seed=2)


class HalfReLU(Step):
    """A lowering with a fault: half of what it should be."""

    def forward(self):
        x = self.at.bottom[0].read()
        self.at.top[0].buffer()[...] = np.maximum(x, 0) / 2

    def backward(self):
        gradient = self.at.top[0].read_diff() * (self.at.bottom[0].read() > 0) / 2
        self.at.bottom[0].diff_buffer()[...] = gradient


@pytest.fixture
def faulty(monkeypatch):
    """The readonly device with a wrong ReLU."""
    monkeypatch.setattr(ReadonlyBackend, "lowerings", {ops.Activation: (HalfReLU,)})


def test_devices_that_agree_pass(net, backend):
    report = testing.compare(net, devices=["numpy", backend], inputs=INPUTS)

    report.raise_if(rtol=1e-5)
    assert report.worst is not None
    named = [(d.layer, d.what) for d in report.differences]
    assert named.index(("ip", "top 'h'")) < named.index(("out", "top 'y'"))
    assert ("relu", "gradient of bottom 'h'") in named
    assert ("ip", "gradient of parameter 0") in named
    assert all(blob.diff_memory.head.name == "UNINITIALIZED" for blob in net.learnable_params)


def test_a_fault_is_named_at_the_layer_where_it_begins(net, faulty):
    report = testing.compare(net, devices=["numpy", "readonly"], inputs=INPUTS)

    first = report.first_divergence(1e-4)

    assert (first.layer, first.what, first.device) == ("relu", "top 'h'", "readonly")
    with expect_error(
        NetError, ErrorCode.INCOMPATIBLE, layer="relu", device="readonly", mentions="numpy"
    ):
        report.raise_if(rtol=1e-4)


def test_forward_alone(net):
    report = testing.compare(net, ["numpy", "readonly"], INPUTS, backward=False)

    assert not any("gradient" in d.what for d in report.differences)


def test_what_is_not_finite_alike_is_no_difference(net):
    inputs = INPUTS | {"x": np.full((3, 4), np.inf)}

    report = testing.compare(net, ["numpy", "strict:device1"], inputs, backward=False)

    assert report.worst.relative == report.worst.absolute == 0


def test_what_is_not_finite_on_one_side_is_told_with_its_place():
    expected = np.zeros((2, 3), np.float32)
    got = expected.copy()
    got[1, 2] = np.nan
    one = testing.Difference("ip", "ReLU", "top 'y'", "cpu", error_stats(got, expected))

    explained = testing.Comparison("numpy", ["cpu"]).explain(one)

    assert "[1, 2] is nan, and 0 on numpy" in explained


@pytest.mark.filterwarnings("error")
def test_the_largest_number_has_units_in_the_last_place():
    largest = np.array([np.finfo(np.float32).max])

    assert error_stats(np.nextafter(largest, np.float32(0)), largest).ulps == 1
    assert error_stats(np.ones(1, np.float32), np.ones(1, np.float32) + np.float32(1e-6)).ulps == 8


def test_refusals(net):
    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, field="devices", got=1):
        testing.compare(net, ["numpy"])
    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, field="devices", mentions="'cpu'"):
        testing.compare(net, "cpu")
    with expect_error(DeviceError, mentions="tpu"):
        testing.compare(net, ["numpy", "tpu"])
    with expect_error(NetError, ErrorCode.INVALID, field="net", got="str"):
        testing.compare("net.prototxt", ["numpy", "cpu"])


@pytest.mark.parametrize("devices", [[], ["cpu"]])
def test_training_is_compared_on_two_devices_or_more(devices):
    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, field="devices", got=len(devices)):
        testing.compare_training(parse_text(NET, NetParameter), devices, 1)


def test_a_compared_solver_writes_no_snapshots(tmp_path):
    text = (
        f'base_lr: 0.1 lr_policy: "fixed" snapshot: 1 snapshot_prefix: "{tmp_path.as_posix()}/run" '
        f"snapshot_after_train: false net_param {{ {NORMALISED} }}"
    )

    steps = testing.compare_training(parse_text(text, SolverParameter), ["numpy", "cpu"], 2)

    assert [step.iteration for step in steps] == [1, 2]
    assert list(tmp_path.iterdir()) == []


NORMALISED = """
layer { name: "x" type: "Input" top: "x"
        input_param { shape { dim: 8 dim: 3 dim: 9 dim: 9 } } }
layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param {
        num_output: 6 kernel_size: 3 weight_filler { type: "msra" } } }
layer { name: "bn" type: "BatchNorm" bottom: "y" top: "y" }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
layer { name: "ip" type: "InnerProduct" bottom: "y" top: "z"
        inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "z" bottom: "t" top: "loss" }
"""


@pytest.fixture
def normalised():
    return Net(parse_text(NORMALISED, NetParameter), "TRAIN", device="numpy", seed=2)


IMAGES = {
    "x": np.random.default_rng(0).standard_normal((8, 3, 9, 9)).astype(np.float32),
    "t": np.arange(8) % 4,
}


def test_the_gradient_of_a_bias_without_effect_is_no_difference(normalised):
    report = testing.compare(normalised, devices=["numpy", "cpu"], inputs=IMAGES)

    report.raise_if(rtol=1e-4)


def test_the_gradient_of_a_bias_with_effect_is(net, monkeypatch):
    from demitasse.layers.inner_product import InnerProduct

    backward = InnerProduct.backward

    def doubled(self, top, propagate_down, bottom):
        backward(self, top, propagate_down, bottom)
        if type(self.xp).__name__ != "module":
            self.blobs[1].mutable_cpu_diff()[...] *= 1.001

    class Namespace:
        def __getattr__(self, name):
            return getattr(np, name)

    monkeypatch.setattr(InnerProduct, "backward", doubled)
    monkeypatch.setattr(ReadonlyBackend, "xp", Namespace())
    monkeypatch.setattr(ReadonlyBackend, "lowerings", {})

    first = testing.compare(net, ["numpy", "readonly"], INPUTS).first_divergence(1e-4)

    assert first.what == "gradient of parameter 1"
