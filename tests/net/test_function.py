"""Nets as pure functions: the net's numbers, nothing kept, and refusals that name the layer."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.core.device import Device
from demitasse.errors import ErrorCode, NetError, ShapeError

RNG = np.random.default_rng(5)

NET = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param {
  shape { dim: 3 dim: 2 dim: 9 dim: 9 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 3 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 4 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm" lrn_param { local_size: 3 } }
layer { name: "max" type: "Pooling" bottom: "norm" top: "max" pooling_param {
  pool: MAX kernel_size: 3 stride: 2 } }
layer { name: "mean" type: "Pooling" bottom: "norm" top: "mean" pooling_param {
  pool: AVE kernel_size: 3 stride: 2 } }
layer { name: "both" type: "Concat" bottom: "max" bottom: "mean" top: "both" }
layer { name: "drop" type: "Dropout" bottom: "both" top: "both" }
layer { name: "ip" type: "InnerProduct" bottom: "both" top: "ip" inner_product_param {
  num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss"
  loss_weight: 0.5 }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" }
"""


def net_of(device, phase="TRAIN"):
    return Net(NET, phase, device=device, seed=3)


def inputs(count=3):
    return {
        "data": RNG.standard_normal((count, 2, 9, 9)).astype(np.float32),
        "label": np.arange(count, dtype=np.float32),
    }


def uploaded(device, arrays):
    upload = Device(device).backend.asarray
    return {name: upload(array) for name, array in arrays.items()}


def on_host(device, array):
    return Device(device).backend.to_host(array)


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_a_function_computes_what_its_net_computes(backend, phase):
    net, given = net_of(backend, phase), inputs()
    function = net.as_function()
    state = function.state

    outputs, new = function(function.params, uploaded(backend, given), state, key=4)
    net.passes = 4
    want = net(given)

    assert function.outputs == list(outputs) == ["accuracy", "loss"]
    for name in want:
        np.testing.assert_allclose(on_host(backend, outputs[name]), want[name], rtol=1e-5)
    for array, blob in zip(new["bn"], net.params["bn"], strict=True):
        np.testing.assert_allclose(on_host(backend, array), blob.data, rtol=1e-5, atol=1e-6)
    assert [*new] == ["bn"]
    assert [*function.params] == ["conv", "ip"]


def test_calls_leave_nothing_behind(backend):
    net, given = net_of(backend), uploaded(backend, inputs())
    function = net.as_function()
    params, state = function.params, function.state

    first = function(params, given, state, key=1)
    function(
        {name: tuple(2 * a for a in arrays) for name, arrays in params.items()}, given, state, 2
    )
    again = function(params, given, state, key=1)

    assert on_host(backend, first[0]["loss"]) == on_host(backend, again[0]["loss"])
    assert net.passes == 0
    assert net.params["bn"][2].data.tolist() == [0]
    assert net.blobs["ip"].data_memory.cleared


def test_keys_choose_the_random_numbers():
    function = net_of("numpy").as_function()
    given = inputs()

    keys = (1, 2, 1, np.int64(1), np.array(1))
    losses = [float(function(function.params, given, key=key)["loss"]) for key in keys]

    assert losses[0] != losses[1]
    assert losses[2:] == losses[:1] * 3


def test_any_number_of_items_is_taken():
    net = net_of("numpy", "TEST")
    function = net.as_function()

    for count in (3, 5, 2):
        given = inputs(count)
        want = net(given)
        np.testing.assert_allclose(
            function(function.params, given)["loss"], want["loss"], rtol=1e-6
        )


def test_losses_are_weighted():
    function = net_of("numpy", "TEST").as_function()

    outputs = function(function.params, inputs())

    assert function.loss_weights == {"loss": 0.5}
    assert function.loss(outputs) == pytest.approx(float(outputs["loss"]) / 2)


def test_arrays_of_the_host_are_taken(backend):
    net, given = net_of(backend, "TEST"), inputs()
    function = net.as_function()
    params = {name: tuple(blob.data * 2 for blob in net.params[name]) for name in function.params}

    outputs = function(params, given)
    function.load(params)

    loss = net(given)["loss"]
    np.testing.assert_allclose(on_host(backend, outputs["loss"]), loss, rtol=1e-5)


def test_parameters_are_written_back(backend):
    net = net_of(backend)
    function = net.as_function()
    params = {name: tuple(a + 1 for a in arrays) for name, arrays in function.params.items()}
    before = net.params["ip"][0].data.copy()

    function.load(params, function.state)

    np.testing.assert_array_equal(net.params["ip"][0].data, before + 1)


def test_shared_parameters_are_there_once():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" }
      inner_product_param { num_output: 3 bias_term: false weight_filler { type: "xavier" } } }
    layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" param { name: "w" }
      inner_product_param { num_output: 3 bias_term: false } }
    """
    net = Net(text, "TEST", device="numpy")
    function, x = net.as_function(), RNG.standard_normal((2, 3)).astype(np.float32)

    [weight] = function.params["a"]

    assert [*function.params] == ["a"]
    np.testing.assert_allclose(
        function(function.params, x)["b"], x @ weight.T @ weight.T, rtol=1e-5
    )


def test_hidden_states_are_state():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 1 dim: 3 } } }
    layer { name: "cont" type: "Input" top: "cont" input_param { shape { dim: 2 dim: 1 } } }
    layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "h" recurrent_param {
      num_output: 4 weight_filler { type: "xavier" } } }
    """
    net = Net(text, "TEST", device="numpy", seed=1)
    function = net.as_function()
    given = {
        "x": RNG.standard_normal((2, 1, 3)).astype(np.float32),
        "cont": np.ones((2, 1), np.float32),
    }

    state, found = function.state, []
    for _ in range(2):
        outputs, state = function(function.params, given, state)
        found.append(outputs["h"])

    want = [net(given), net(given)]
    assert not np.allclose(want[0], want[1])
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_data_layers_become_inputs():
    text = """
    layer { name: "d" type: "DummyData" top: "data" top: "label"
      dummy_data_param { shape { dim: 4 dim: 3 } shape { dim: 4 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
      inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
    """
    net = Net(text, "TRAIN", device="numpy")
    function = net.as_function()
    x = np.zeros((2, 3), np.float32)

    outputs = function(function.params, {"data": x, "label": np.zeros(2)})

    assert function.inputs == ["data", "label"]
    assert float(outputs["loss"]) == pytest.approx(np.log(2))
    assert net.inputs == []


def test_another_device_is_taken_over():
    net, given = net_of("cpu", "TEST"), inputs()
    function = net.as_function("numpy")

    outputs = function(function.params, given)

    assert str(function.device) == "numpy"
    np.testing.assert_allclose(outputs["loss"], net(given)["loss"], rtol=1e-5)


# -- refusals --------------------------------------------------------------------------------------


def test_random_numbers_need_a_key():
    function = net_of("numpy").as_function()

    with expect_error(NetError, ErrorCode.MISSING, place="layer 'drop'", field="key"):
        function(function.params, inputs())


def test_a_layer_that_reads_on_the_host_is_named():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 4 dim: 4 } } }
    layer { name: "rois" type: "Input" top: "rois" input_param { shape { dim: 1 dim: 5 } } }
    layer { name: "roi" type: "ROIPooling" bottom: "x" bottom: "rois" top: "y"
      roi_pooling_param { pooled_h: 2 pooled_w: 2 } }
    """
    function = Net(text, "TEST", device="numpy").as_function()
    given = {
        "x": np.zeros((1, 2, 4, 4), np.float32),
        "rois": np.array([[0, 0, 0, 3, 3]], np.float32),
    }

    with expect_error(NetError, ErrorCode.UNSUPPORTED, place="layer 'roi' (ROIPooling)"):
        function(function.params, given)


def test_layers_with_parameters_of_one_name_are_refused():
    layer = """layer { name: "ip" type: "InnerProduct" bottom: "%s" top: "%s"
      inner_product_param { num_output: 4 } }"""
    text = "input: 'x' input_shape { dim: 2 dim: 3 }" + layer % ("x", "y") + layer % ("y", "z")
    net = Net(text, "TEST", device="numpy")

    with expect_error(NetError, ErrorCode.DUPLICATE, layer="ip"):
        net.as_function()


def test_missing_inputs_are_refused():
    function = net_of("numpy", "TEST").as_function()

    with expect_error(NetError, ErrorCode.UNKNOWN, mentions=["data", "label"]):
        function(function.params, {"data": inputs()["data"]})


@pytest.mark.parametrize("change", ["shape", "layer", "number"])
def test_other_parameters_are_refused(change):
    net = net_of("numpy", "TEST")
    function = net.as_function()
    params = function.params
    match change:
        case "shape":
            params["ip"] = (params["ip"][0][:1], params["ip"][1])
        case "layer":
            params["other"] = params["ip"]
        case "number":
            params["ip"] = params["ip"][:1]

    for call in (lambda: function(params, inputs()), lambda: function.load(params)):
        name = "other" if change == "layer" else "ip"
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, layer=name):
            call()


def test_a_failed_call_can_be_followed_by_others():
    function = net_of("numpy", "TEST").as_function()
    given = inputs()
    want = function(function.params, given)

    with pytest.raises(ShapeError):
        function(function.params, {"data": given["data"][:, :1], "label": given["label"]})

    assert function(function.params, given)["loss"] == want["loss"]
