"""What the conformance tests do not see of dpnp."""

import dpctl
import numpy as np
import pytest

from demitasse import Net
from demitasse.core.device import Device
from demitasse.errors import OutOfMemoryError


@pytest.fixture
def backend():
    return Device("dpnp:cpu").backend


def test_a_function_computes_what_its_net_computes():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 1 dim: 7 dim: 7 } } }
    layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" convolution_param {
      num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
    layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param {
      pool: AVE kernel_size: 2 stride: 2 } }
    """
    net = Net(text, "TEST", device="dpnp:cpu", seed=1)
    function, x = net.as_function(), np.random.default_rng(0).random((2, 1, 7, 7), np.float32)

    found = function(function.params, net.device.backend.asarray(x))["pool"]

    np.testing.assert_array_equal(net.device.backend.to_host(found), net(x))


def test_a_lack_of_memory_is_called_one(backend):
    error = dpctl.memory.USMAllocationError("USM allocation failed")

    assert isinstance(backend.explained(error), OutOfMemoryError)
    assert backend.explained(ValueError("no")).args == ("no",)
