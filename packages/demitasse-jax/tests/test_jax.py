"""Nets in JAX: jit, grad and vmap of a net's function, and training without a solver."""

import os
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demitasse import Net
from demitasse.backends import random
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.errors import DeviceError, ErrorCode, NetError
from demitasse.examples.data import digits as read_digits
from demitasse.examples.digits import TEST_SIZE, prepare

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

LABEL = 'input: "label" input_dim: 64 input_dim: 1 input_dim: 1 input_dim: 1'

RNG = np.random.default_rng(8)


@pytest.fixture
def models() -> Path:
    """Caffe's own prototxts."""
    folder = os.environ.get("DEMITASSE_REFERENCE_DATA")
    if not folder:
        pytest.skip("DEMITASSE_REFERENCE_DATA is not set")
    return Path(folder)


def small():
    """Return a net, its function, its state and a batch."""
    net = Net(STATEFUL_NET, "TRAIN", device="jax:cpu", seed=4, force_backward=True)
    function = net.as_function()
    batch = {
        "data": RNG.standard_normal((4, 1, 9, 9)).astype(np.float32),
        "label": np.arange(4, dtype=np.float32),
    }
    return net, function, function.state, batch


def loss_of(function, state, key, params, batch):
    outputs, _ = function(params, batch, state, key)
    return function.loss(outputs)


def close(tree, other, rtol=1e-4, atol=1e-6):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), tree, other)


def test_gradients_are_those_of_backward():
    net, function, state, batch = small()

    gradients, given = jax.grad(partial(loss_of, function, state, 6), argnums=(0, 1))(
        function.params, batch
    )
    net.passes = 6
    with settings.override(cuda_graphs="off"):  # XLA rounds a program in another way
        net(batch)
        net.backward()

    for name, arrays in gradients.items():
        for array, blob in zip(arrays, net.params[name], strict=True):
            np.testing.assert_array_equal(array, blob.diff)
    np.testing.assert_array_equal(given["data"], net.blobs["data"].diff)
    assert not given["label"].any()


def test_a_compiled_function_takes_any_key_without_another_compilation():
    _, function, state, batch = small()
    traces = []

    @jax.jit
    def compiled(params, batch, key):
        traces.append(key)
        return jax.value_and_grad(partial(loss_of, function, state, key))(params, batch)

    results = [compiled(function.params, batch, jnp.uint32(key)) for key in (1, 2, 3)]

    assert len(traces) == 1
    assert len({float(loss) for loss, _ in results}) == 3
    for key, result in zip((1, 2, 3), results, strict=True):
        plain = partial(loss_of, function, state, key)
        close(result, jax.value_and_grad(plain)(function.params, batch))


def test_a_smaller_batch_follows_a_larger_one():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 5 } } }
    layer { name: "a" type: "Sigmoid" bottom: "x" top: "a" }
    layer { name: "b" type: "TanH" bottom: "x" top: "b" }
    layer { name: "y" type: "Eltwise" bottom: "a" bottom: "b" top: "y" }
    """
    function = Net(text, "TEST", device="jax:cpu").as_function()
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(function({}, {"x": x})["y"])))
    x = jnp.asarray(RNG.standard_normal((4, 5)), jnp.float32)

    found = [gradient(x[:count]) for count in (4, 2, 3)]

    for one, count in zip(found, (4, 2, 3), strict=True):
        close(one, found[0][:count])


def test_constants_of_layers_within_a_layer_do_not_outlive_a_trace():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 4 dim: 4 } } }
    layer { name: "y" type: "SPP" bottom: "x" top: "y" spp_param {
      pyramid_height: 2 pool: STOCHASTIC } }
    """
    function = Net(text, "TRAIN", device="jax:cpu").as_function()
    x = jnp.asarray(RNG.random((1, 2, 4, 4)), jnp.float32)

    found = [jax.jit(lambda x: function({}, x, key=1)["y"])(x) for _ in range(2)]

    close(*found)


def test_running_averages_are_results():
    net, function, state, batch = small()

    _, new = jax.jit(function)(function.params, batch, state, jnp.uint32(0))
    net(batch)

    for array, blob in zip(new["bn"], net.params["bn"], strict=True):
        np.testing.assert_allclose(array, blob.data, rtol=1e-5, atol=1e-7)


def test_each_example_has_a_gradient_by_vmap():
    _, function, state, batch = small()

    @jax.jit
    def gradient(params, item):
        one = {name: array[None] for name, array in item.items()}
        return jax.grad(partial(loss_of, function, state, 2))(params, one)

    each = jax.vmap(gradient, in_axes=(None, 0))(function.params, batch)

    for index in range(4):
        item = {name: array[index] for name, array in batch.items()}
        alone = gradient(function.params, item)
        close(jax.tree.map(lambda array, i=index: array[i], each), alone)


def test_gradients_of_gradients_exist():
    smooth = STATEFUL_NET.replace('type: "Dropout"', 'type: "TanH"')
    net = Net(smooth, "TRAIN", device="jax:cpu", seed=4)
    function, batch = net.as_function(), small()[3]
    state, params = function.state, function.params

    def length(params):
        gradients = jax.grad(partial(loss_of, function, state, 0))(params, batch)
        return sum(jnp.sum(array**2) for array in jax.tree.leaves(gradients["ip"]))

    along = jnp.asarray(RNG.standard_normal(params["ip"][0].shape), jnp.float32)
    step = 1e-2

    def moved(sign):
        return length(params | {"ip": (params["ip"][0] + sign * step * along, params["ip"][1])})

    slope = jnp.sum(jax.jit(jax.grad(length))(params)["ip"][0] * along)
    assert float(slope) == pytest.approx(float(moved(1) - moved(-1)) / (2 * step), rel=0.02)


def test_lenet_and_googlenet_are_one_program_each(models):
    lenet = models / "models" / "lenet_mnist_v1" / "lenet.prototxt"
    googlenet = models / "prototxt" / "BVLC+caffe" / "models" / "bvlc_googlenet" / "deploy.prototxt"
    for file, shape in ((lenet, (2, 1, 28, 28)), (googlenet, (1, 3, 224, 224))):
        net = Net(file, "TEST", device="cpu", seed=1)
        function, x = net.as_function("jax:cpu"), RNG.random(shape, np.float32)

        program = jax.jit(function).lower(function.params, x).compile()
        [found] = program(function.params, x).values()

        np.testing.assert_allclose(found, net(x), rtol=1e-4, atol=1e-7)


def test_lenet_has_its_gradients_as_one_program(models):
    text = (models / "models" / "lenet_mnist_v1" / "lenet.prototxt").read_text()
    text = text.replace("layers {", LABEL + " layers {", 1)
    text = text.replace("type: SOFTMAX", "type: SOFTMAX_LOSS")
    text = text.replace('top: "prob"', 'bottom: "label" top: "prob"')
    net = Net(text, "TRAIN", device="cpu", seed=1)
    function = net.as_function("jax:cpu")
    batch = {"data": RNG.random((3, 1, 28, 28), np.float32), "label": np.zeros((3, 1, 1, 1))}

    gradients = jax.jit(jax.grad(lambda params: function(params, batch)["prob"]))(function.params)
    net(batch)
    net.backward()

    for name, arrays in gradients.items():
        for array, blob in zip(arrays, net.params[name], strict=True):
            np.testing.assert_allclose(array, blob.diff, rtol=1e-3, atol=1e-6)


def test_a_loop_in_jax_trains_the_digits(tmp_path):
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    prepare(tmp_path)
    net = Net(tmp_path / "train_test.prototxt", "TRAIN", device="jax:cpu", seed=1)
    function = net.as_function()
    split = read_digits(size=16, test=TEST_SIZE)
    images, labels = (jnp.asarray(array, jnp.float32) for array in split.train)
    images = images.reshape(-1, 1, 16, 16) / 256
    rate, momentum, decay, steps, batch = 0.05, 0.9, 0.0005, 600, 50

    @jax.jit
    def step(params, history, number):
        first = number * batch % len(labels)
        data = jax.lax.dynamic_slice_in_dim(images, first, batch)
        label = jax.lax.dynamic_slice_in_dim(labels, first, batch)
        gradients = jax.grad(
            lambda params: function.loss(function(params, {"data": data, "label": label}))
        )(params)
        now = rate * (1 - number / steps)
        history = jax.tree.map(
            lambda h, g, w: momentum * h + now * (g + decay * w), history, gradients, params
        )
        return jax.tree.map(jnp.subtract, params, history), history

    params = function.params
    history = jax.tree.map(jnp.zeros_like, params)
    for number in range(steps):
        params, history = step(params, history, number)
    function.load(params)
    tested = Net(tmp_path / "train_test.prototxt", "TEST", device="cpu")
    tested.share_trained_layers_with(net.to("cpu"))

    assert step._cache_size() == 1
    accuracy = np.mean([tested.forward() is not None and tested.blobs["accuracy"].data.item()
                        for _ in range(11)])  # fmt: skip
    assert accuracy >= 0.97


def test_a_layer_that_reads_values_is_named():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 4 dim: 4 } } }
    layer { name: "rois" type: "Input" top: "rois" input_param { shape { dim: 1 dim: 5 } } }
    layer { name: "roi" type: "ROIPooling" bottom: "x" bottom: "rois" top: "y"
      roi_pooling_param { pooled_h: 2 pooled_w: 2 } }
    """
    function = Net(text, "TEST", device="jax:cpu").as_function()
    given = {"x": jnp.zeros((1, 2, 4, 4)), "rois": jnp.asarray([[0.0, 0, 0, 3, 3]])}

    with pytest.raises(NetError) as caught:
        jax.jit(function)({}, given)

    assert caught.value.code == ErrorCode.UNSUPPORTED
    assert caught.value.place.startswith("layer 'roi' (ROIPooling)")


def test_keys_of_a_compiled_function_draw_the_words_of_all_backends():
    backend = Device("jax:cpu").backend

    words = jax.jit(lambda passes: backend.random_bits(3, 5, passes, 20))(jnp.uint32(7))

    assert words.tolist() == random.bits(3, 5, 7, 20).tolist()


def test_float64_is_refused_without_the_setting():
    backend = Device("jax:cpu").backend

    with jax.enable_x64(False), pytest.raises(DeviceError) as caught:
        backend.dtype("float64")

    assert caught.value.code == ErrorCode.UNSUPPORTED
    assert "jax_enable_x64" in str(caught.value)


def test_the_page_on_jax_is_followed(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path / "digits")
    page = Path(__file__).resolve().parents[3] / "docs" / "jax.md"
    code = re.findall("^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    names: dict[str, object] = {}

    exec("\n".join(code), names)

    assert names["each"]["conv1"][0].shape == (4, 16, 1, 5, 5)
