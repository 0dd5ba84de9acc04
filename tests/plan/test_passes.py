"""Passes over a range of layers, after new weights, and after a layer that failed."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
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
