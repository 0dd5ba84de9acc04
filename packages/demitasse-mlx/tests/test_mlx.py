"""What the conformance tests do not see of MLX: gradients of nets, types, errors."""

import mlx.core as mx
import numpy as np
import pytest

from demitasse import Net
from demitasse.core.device import Device
from demitasse.errors import OutOfMemoryError

STATEFUL_NET = """
layer { name: "data" type: "Input" top: "data" input_param {
  shape { dim: 4 dim: 1 dim: 9 dim: 9 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" }
layer { name: "pool" type: "Pooling" bottom: "bn" top: "pool" pooling_param {
  kernel_size: 3 stride: 2 } }
layer { name: "drop" type: "Dropout" bottom: "pool" top: "pool" }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param {
  num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture
def backend():
    return Device("mlx:cpu").backend


def test_gradients_of_mlx_are_those_of_backward():
    net = Net(STATEFUL_NET, "TRAIN", device="mlx:cpu", seed=4)
    function = net.as_function()
    state, params = function.state, function.params
    batch = {
        "data": np.random.default_rng(1).standard_normal((4, 1, 9, 9)).astype(np.float32),
        "label": np.arange(4, dtype=np.float32),
    }

    def loss(params):
        return function.loss(function(params, batch, state, 3)[0])

    gradients = mx.grad(loss)(params)
    compiled = mx.compile(mx.grad(loss))(params)
    net.passes = 3
    net(batch)
    net.backward()

    for name, arrays in gradients.items():
        for array, other, blob in zip(arrays, compiled[name], net.params[name], strict=True):
            np.testing.assert_array_equal(np.array(array), blob.diff)
            np.testing.assert_allclose(np.array(other), blob.diff, rtol=1e-4, atol=1e-6)


def test_a_smaller_batch_follows_a_larger_one():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 5 } } }
    layer { name: "a" type: "Sigmoid" bottom: "x" top: "a" }
    layer { name: "b" type: "TanH" bottom: "x" top: "b" }
    layer { name: "y" type: "Eltwise" bottom: "a" bottom: "b" top: "y" }
    """
    function = Net(text, "TEST", device="mlx:cpu").as_function()
    gradient = mx.compile(mx.grad(lambda x: mx.sum(function({}, {"x": x})["y"])))
    x = mx.random.normal((4, 5))

    found = [np.array(gradient(x[:count])) for count in (4, 2, 3)]

    for one, count in zip(found, (4, 2, 3), strict=True):
        np.testing.assert_allclose(one, found[0][:count], rtol=1e-5)


def test_a_function_without_outputs_returns_none():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 } } }
    layer { name: "end" type: "Silence" bottom: "x" }
    """
    function = Net(text, "TEST", device="mlx:cpu").as_function()

    assert function({}, {"x": mx.zeros(2)}) == {}


def test_indices_have_a_sign(backend):
    array = backend.asarray(np.array([3.0, 1.0, 2.0], np.float32))

    for indices in (backend.xp.argsort(array), backend.xp.argmax(array)):
        assert indices.dtype == mx.int64


def test_exponentials_of_float64_have_its_digits(backend):
    values = np.linspace(-30, 30, 101)

    found = backend.to_host(backend.xp.exp(backend.asarray(values)))

    np.testing.assert_allclose(found, np.exp(values), rtol=1e-13)


def test_a_lack_of_memory_is_called_one(backend):
    error = RuntimeError("[malloc_or_wait] Unable to allocate 99999999999999 bytes.")

    assert isinstance(backend.explained(error), OutOfMemoryError)
    assert backend.explained(ValueError("no")).args == ("no",)
