"""Passes over a range of layers, after new weights, and after a layer that failed."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net, NetError
from demitasse.backends.cpu import slow_reason
from demitasse.io.proto import NetParameter, parse_text

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 32 dim: 28 dim: 27 } } }
layer { name: "c1" type: "Convolution" bottom: "x" top: "c1" convolution_param { num_output: 32
  kernel_size: 3 pad: 1 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "norm" type: "BatchNorm" bottom: "c1" top: "c1" }
layer { name: "scale" type: "Scale" bottom: "c1" top: "c1" }
layer { name: "relu" type: "ReLU" bottom: "c1" top: "c1" }
layer { name: "c2" type: "Convolution" bottom: "c1" top: "c2" convolution_param { num_output: 32
  kernel_size: 3 pad: 1 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "norm2" type: "BatchNorm" bottom: "c2" top: "c2" }
layer { name: "scale2" type: "Scale" bottom: "c2" top: "c2" }
layer { name: "c4" type: "Convolution" bottom: "c2" top: "c4" convolution_param { num_output: 32
  kernel_size: 3 pad: 1 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "norm4" type: "BatchNorm" bottom: "c4" top: "c4" }
layer { name: "scale4" type: "Scale" bottom: "c4" top: "c4" }
layer { name: "c3" type: "Convolution" bottom: "c1" top: "c3" convolution_param { num_output: 32
  kernel_size: 1 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "both" type: "Concat" bottom: "c4" bottom: "c3" top: "both" }
layer { name: "steps" type: "Threshold" bottom: "c3" top: "steps" }
layer { name: "sum" type: "Eltwise" bottom: "c2" bottom: "steps" top: "sum" }
layer { name: "turned" type: "Permute" bottom: "both" top: "turned"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "ip" type: "InnerProduct" bottom: "sum" top: "y" inner_product_param { num_output: 5
  weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "prob" type: "Softmax" bottom: "y" top: "prob" }
"""


@pytest.fixture
def made():
    def make(**options):
        net = Net(parse_text(NET, NetParameter), "TEST", device="cpu", seed=3, **options)
        rng = np.random.default_rng(1)
        for name in ("norm", "norm2", "norm4"):
            for blob, value in zip(net.params[name], (0.3, 3.0, 1.5), strict=True):
                blob.mutable_cpu_data()[...] = value
        net.blobs["x"].mutable_cpu_data()[...] = rng.normal(size=net.blobs["x"].shape)
        return net

    return make


def values(net, names):
    return [net.blobs[name].cpu_data().copy() for name in names]


def test_a_part_of_a_pass_is_done_when_it_returns(made):
    whole, part = made(), made()
    whole.forward()

    part.forward(end="scale2")

    for one, other in zip(values(part, ["c2"]), values(whole, ["c2"]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_new_weights_count_in_the_next_pass(made):
    changed, fresh = made(), made()
    changed.forward()

    for net in (changed, fresh):
        net.params["c1"][0].mutable_cpu_data()[...] *= 2
        net.params["c3"][0].mutable_cpu_data()[...] *= 3
        net.forward()

    np.testing.assert_array_equal(*(net.blobs["prob"].cpu_data() for net in (changed, fresh)))


def test_a_backward_pass_over_no_layers_does_nothing(made):
    net = made(force_backward=True)
    net.forward()
    net.backward("c2", "ip")

    assert not net.params["c2"][0].cpu_diff().any()


def test_what_was_computed_before_a_layer_that_failed_is_there(made, monkeypatch):
    net = made()
    net.forward()
    before = values(net, ["c2"])
    net.blobs["c2"].mutable_cpu_data()[...] = 0
    portable = net.layer_by_name("steps")

    def fail(bottom, top):
        message = "no more"
        raise ValueError(message)

    monkeypatch.setattr(portable, "forward", fail)
    with expect_error(ValueError, mentions="no more"):
        net.forward()

    np.testing.assert_array_equal(before, values(net, ["c2"]))


NORMS = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 3 dim: 8 dim: 6 dim: 5 } } }
layer { name: "c1" type: "Convolution" bottom: "x" top: "c1" convolution_param { num_output: 8
  kernel_size: 3 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "norm" type: "BatchNorm" bottom: "c1" top: "c1" }
layer { name: "scale" type: "Scale" bottom: "c1" top: "c1" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "c1" top: "c1" }
layer { name: "tanh" type: "TanH" bottom: "c1" top: "c1" }
layer { name: "c2" type: "Convolution" bottom: "c1" top: "c2" convolution_param { num_output: 8
  kernel_size: 1 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "loss" type: "Reduction" bottom: "c2" top: "loss" loss_weight: 1
  reduction_param { operation: SUMSQ } }
"""


def norms(text, phase, *, optimize):
    net = Net(parse_text(text, NetParameter), phase, device="cpu", seed=3, optimize=optimize)
    for blob in net.params["norm"]:
        blob.mutable_cpu_data()[...] = 2
    x = net.blobs["x"]
    x.mutable_cpu_data()[...] = np.random.default_rng(1).normal(size=x.shape)
    return net


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize(
    ("start", "end"),
    [("loss", "relu"), ("loss", "scale"), ("scale", None), ("norm", "c1"), ("scale", "scale")],
)
def test_gradients_begin_and_end_between_layers_that_ran_as_one(phase, start, end):
    fused, alone = nets = [norms(NORMS, phase, optimize=wanted) for wanted in (True, False)]

    for _ in range(4):  # the last passes are replayed
        for net in nets:
            net.clear_param_diffs()
            net.forward()
            top = net.layer_by_name(start).param.top[0]
            net.blobs[top].mutable_cpu_diff()[...] = 1
            net.backward(start=start, end=end)

        for name in fused.params:
            for one, other in zip(fused.params[name], alone.params[name], strict=True):
                np.testing.assert_allclose(one.cpu_data(), other.cpu_data(), rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(one.cpu_diff(), other.cpu_diff(), rtol=1e-3, atol=1e-3)
        for name in ("x", "c1", "c2"):
            one, other = (net.blobs[name] for net in nets)
            np.testing.assert_allclose(one.cpu_data(), other.cpu_data(), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(one.cpu_diff(), other.cpu_diff(), rtol=1e-3, atol=1e-3)


HEAD, _, BODY = NORMS.partition('layer { name: "c1"')
DRAWS = 'layer { name: "drop" type: "Dropout" bottom: "c1" top: "c1" }\nlayer { name: "c2"'


@pytest.mark.parametrize(
    "text",
    [
        HEAD + BODY[BODY.index("layer") :].replace('"c1"', '"x"'),  # the input is overwritten
        NORMS.replace('layer { name: "c2"', DRAWS),
    ],
)
def test_the_gradient_of_one_of_them_is_refused_where_they_cannot_run_again(text):
    net = norms(text, "TRAIN", optimize=True)
    net.forward()

    with expect_error(NetError, mentions="run forward over the same range"):
        net.backward(end="scale")
