"""Calls as users of PyTorch, Keras, scikit-learn and pycaffe guess them."""

import copy
import pickle
import re

import numpy as np
import pytest
from expect_error import expect_error, expect_warning

import demitasse as dm
from demitasse.core import guesses
from demitasse.errors import ErrorCode, NetError, ShapeError, WeightsError

TEXT = """
name: "small"
layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 2 dim: 1 dim: 8 dim: 8 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" convolution_param {
  num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2" convolution_param {
  num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "fc" type: "InnerProduct" bottom: "conv2" top: "fc" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


@pytest.fixture
def net():
    return dm.Net(TEXT, phase="test", seed=1)


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(5, 1, 8, 8)).astype(np.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda net, x: net(x),
        lambda net, x: net(data=x),
        lambda net, x: net({"data": x}),
        lambda net, x: net.forward(x),
        lambda net, x: net.forward({"data": x}),
        lambda net, x: net.forward(data=x),
        lambda net, x: net.forward(list(x)),
        lambda net, x: net.predict(x)["prob"],
        lambda net, x: net.predict(x, batch_size=2)["prob"],
        lambda net, x: net.predict(x, batch_size=2, outputs=["prob"])["prob"],
        lambda net, x: net.predict({"data": x}, outputs="prob")["prob"],
    ],
)
def test_all_ways_to_call_give_the_same(net, x, call):
    assert np.allclose(call(net, x), net.predict(x)["prob"], atol=1e-6)


def test_forward_without_arrays_returns_the_loss(net):
    assert net.forward() == 0.0
    assert net.forward("conv1", "conv2") == 0.0
    assert net.forward(0, 1) == 0.0


def test_one_item_needs_no_batch_axis(net, x):
    whole = net(x)

    assert net(x[3]).shape == (3,)
    assert np.allclose(net(x[3]), whole[3], atol=1e-6)
    assert net.predict(x[3], outputs=["conv1", "prob"])["conv1"].shape == (4, 6, 6)


def test_other_blobs_are_concatenated_over_batches(net, x):
    whole = net.predict(x, outputs=["fc", "conv1"])
    parts = net.predict(x, outputs=["fc", "conv1"], batch_size=2)

    assert list(parts) == ["fc", "conv1"]
    assert all(np.allclose(whole[name], parts[name], atol=1e-6) for name in whole)


def test_unknown_outputs_are_refused(net, x):
    with expect_error(NetError, ErrorCode.UNKNOWN, blob="nope"):
        net.predict(x, outputs=["nope"])


@pytest.mark.parametrize("given", ["photo.jpg", ["photo.jpg", "other.jpg"]])
def test_names_of_images_are_refused(net, given):
    with expect_error(ShapeError, ErrorCode.INVALID, mentions=["photo.jpg", "load_model"]):
        net.predict(given)


def test_a_net_is_made_as_pycaffe_makes_it(net, x, tmp_path):
    file, weights = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    file.write_text(TEXT)
    net.save(weights)

    made = [
        dm.Net(file, weights),
        dm.Net(str(file), str(weights), "TEST"),
        dm.Net(file, "TEST", weights),
        dm.Net(file, phase="TEST", weights=str(weights)),
    ]

    assert all(one.phase == "TEST" for one in made)
    assert all(np.array_equal(one(x), net(x)) for one in made)


def test_errors_in_text_have_lines():
    with expect_error(NetError, ErrorCode.UNKNOWN, mentions="text:5"):
        dm.Net(TEXT.replace("Convolution", "Convolutoin", 1))


def test_shapes_are_changed_by_name(net):
    net.reshape(data=(7, 1, 8, 8))
    assert net.blobs["conv1"].shape == (7, 4, 6, 6)
    net.reshape({"data": (2, 1, 8, 8)})
    assert net.blobs["prob"].shape == (2, 3)


def test_facts_of_a_net(net):
    assert net.parameter_count == 40 + 148 + 195
    assert [record["layer"] for record in net.summary().records] == net.layer_names
    assert "InnerProduct" in repr(net.summary())
    assert repr(net.layers["conv1"]) == "Convolution('conv1', data -> conv1; 4x1x3x3, 4)"
    assert net.layers["fc"] is net.layers[3]


@pytest.mark.parametrize(
    ("name", "advice"),
    [("conv3", "did you mean 'conv2' or 'conv1'?"), ("zz", "it has data, conv1, ")],
)
def test_a_layer_that_is_not_there_is_named_with_similar_or_all(net, name, advice):
    with pytest.raises(KeyError) as raised:
        net.layers[name]

    assert raised.value.args[0].startswith(f"net.layers has no {name!r}; {advice}")


def test_hooks_run_with_their_layer(net, x):
    seen = []
    remove = net.add_hook("conv2", seen.append)
    net(x)
    remove()
    net(x)
    remove()

    assert seen == [net.layers["conv2"]]


def test_unknown_hooks_are_refused(net):
    with expect_error(dm.ConfigError, ErrorCode.UNKNOWN, field="when"):
        net.add_hook("conv2", print, "sometimes")
    with expect_error(NetError, ErrorCode.UNKNOWN, layer="conv3"):
        net.add_hook("conv3", print)


@pytest.mark.parametrize(
    ("mapping", "name", "near"),
    [("blobs", "conv3", "conv2"), ("params", "fx", "fc"), ("layers", "con1", "conv1")],
)
def test_a_wrong_name_lists_similar_ones(net, mapping, name, near):
    with pytest.raises(KeyError) as caught:
        getattr(net, mapping)[name]

    assert near in str(caught.value)


def test_a_copy_is_a_clone(net, x):
    other = copy.deepcopy(net)

    assert other is not net
    assert np.array_equal(other(x), net(x))


@pytest.mark.parametrize("act", [copy.copy, pickle.dumps])
def test_other_copies_name_clone(net, act):
    with pytest.raises(TypeError) as caught:
        act(net)

    assert "clone()" in str(caught.value)


@pytest.mark.parametrize("name", guesses.NET)
def test_names_of_other_libraries_name_ours(net, name):
    with pytest.raises(AttributeError) as caught:
        getattr(net, name)

    assert guesses.NET[name] in str(caught.value)


def test_advice_names_what_is_there(net):
    owners = {"net": net, "blob": net.params["fc"][0], "solver": dm.Solver, "demitasse": dm}
    for table in (guesses.NET, guesses.BLOB, guesses.SOLVER, guesses.MODULE):
        for advice in table.values():
            for owner, name in re.findall(r"\b(net|blob|solver|demitasse)\.(\w+)", advice):
                known = vars(dm.Solver) | {"net": 0, "iter": 0, "lr": 0, "param": 0}
                found = name in known if owner == "solver" else hasattr(owners[owner], name)
                assert found, advice


@pytest.mark.parametrize("name", guesses.MODULE)
def test_names_of_other_modules_name_ours(name):
    with pytest.raises(AttributeError) as caught:
        getattr(dm, name)

    assert guesses.MODULE[name] in str(caught.value)


def test_blobs_name_their_arrays(net):
    with pytest.raises(AttributeError) as caught:
        net.blobs["data"].numpy()

    assert "blob.data" in str(caught.value)


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.onnx", "a.pkl", "a.prototxt"])
def test_foreign_formats_are_not_written(net, tmp_path, name):
    with expect_error(WeightsError, ErrorCode.UNSUPPORTED):
        net.save(tmp_path / name)

    assert not any(tmp_path.iterdir())


def test_backward_without_a_loss_warns(net):
    net.forward()
    with expect_warning(UserWarning, mentions=["small", "force_backward"]):
        net.backward()


def test_backward_without_output_gradients_warns():
    net = dm.Net(TEXT, phase="TRAIN", force_backward=True, seed=1)
    net.forward()
    with expect_warning(UserWarning, mentions=["small", "prob"]):
        net.backward()

    net.blobs["prob"].diff[...] = [[1, 0, 0], [1, 0, 0]]
    net.backward()
    assert net.blobs["data"].diff.any()


def test_layers_are_described_by_functions():
    spec = dm.NetSpec()
    spec.data = dm.layers.Input(shape={"dim": [1, 1, 8, 8]})
    spec.fc = dm.layers.InnerProduct(spec.data, num_output=3)

    assert dm.Net(spec.to_proto())(np.zeros((1, 1, 8, 8))).shape == (1, 3)


def test_a_wrong_type_names_the_right_one():
    with expect_warning(UserWarning, mentions="'Convolution'"):
        dm.layers.Convolutoin()
