"""pycaffe's names over the engine, as scripts written for Caffe use them."""

import numpy as np
import pytest

import demitasse.pycaffe as caffe
from demitasse import settings
from demitasse.device import set_device
from demitasse.errors import ConfigError, DeviceError, NetError, ShapeError
from demitasse.pycaffe.proto import caffe_pb2

NET = """
name: "classifier"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 6 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } }
        include { phase: TRAIN } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "extra" type: "TanH" bottom: "ip" top: "extra" include { stage: "extra" } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss"
        include { phase: TRAIN } }
"""

SOLVER = """
net: "net.prototxt" base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" max_iter: 4
snapshot_prefix: "out" random_seed: 1
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Scripts find their files in the working directory; modes do not outlive a test."""
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    set_device(None)
    settings.set("seed", None)


@pytest.fixture
def on_backend(backend):
    """Nets are made on each device in turn."""
    set_device(backend)
    return backend


def test_a_net_shows_its_parts(on_backend):
    net = caffe.Net("net.prototxt", caffe.TRAIN)

    assert net.inputs == ["data", "label"]
    assert net.outputs == ["loss"]
    assert list(net.blobs) == net._blob_names == ["data", "label", "ip", "loss"]
    assert net.top_names["ip"] == ["ip"]
    assert net.bottom_names["loss"] == ["ip", "label"]
    assert (net._bottom_ids(3), net._top_ids(3)) == ([2, 1], [3])
    assert (net._inputs, net._outputs) == ([0, 1], [3])
    assert list(net._layer_names) == ["data", "label", "ip", "loss"]
    assert net.layer_dict["ip"].type == "InnerProduct"
    assert [b.shape for b in net.layers[2].blobs] == [(3, 6), (3,)]
    assert list(net.blobs["data"].shape) == [4, 6]
    assert (net.blobs["data"].num, net.blobs["data"].channels, net.blobs["data"].width) == (4, 6, 1)
    assert net._blob_loss_weights == [0, 0, 0, 1]
    assert net.blob_loss_weights["loss"] == 1
    assert net._layer_need_backward == [False, False, True, True]
    assert net._memory_used == (24 + 4 + 12 + 1) * 4


def test_both_ways_to_make_a_net(folder):
    caffe.Net("net.prototxt", caffe.TEST).save("w.caffemodel")

    newer = caffe.Net("net.prototxt", caffe.TEST, weights="w.caffemodel")
    older = caffe.Net("net.prototxt", "w.caffemodel", caffe.TEST)

    np.testing.assert_array_equal(newer.params["ip"][0].data, older.params["ip"][0].data)


def test_stages_choose_layers():
    net = caffe.Net("net.prototxt", caffe.TEST, stages=["extra"], level=1)

    assert "extra" in net.layer_dict


def test_other_ways_are_refused():
    with pytest.raises(TypeError, match="Net\\(file, phase"):
        caffe.Net("net.prototxt")
    with pytest.raises(TypeError, match="wrong"):
        caffe.Net("net.prototxt", caffe.TEST, wrong=1)
    with pytest.raises(ConfigError, match="TRAIN or TEST"):
        caffe.Net("net.prototxt", 5)


def test_forward_returns_live_views_of_the_outputs_and_what_is_asked_for(on_backend):
    net = caffe.Net("net.prototxt", caffe.TEST)
    items = np.random.default_rng(0).random((4, 6), np.float32)

    out = net.forward(["ip"], data=items)
    before = out["prob"].copy()
    net.blobs["data"].data[...] = 0
    net.forward()

    assert set(out) == {"prob", "ip"}
    np.testing.assert_allclose(before.sum(axis=1), np.ones(4), rtol=1e-5)
    np.testing.assert_allclose(out["prob"], np.full((4, 3), 1 / 3), rtol=1e-5)


def test_forward_and_backward_in_part(on_backend):
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.blobs["data"].data[...] = 1

    ip = net.forward(end="ip")
    prob = net.forward(start="prob")

    assert set(ip) == {"ip"}
    assert set(prob) == {"prob"}


def test_backward_returns_gradients(folder, on_backend):
    (folder / "net.prototxt").write_text(NET + "force_backward: true")
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.forward(data=np.ones((4, 6)))

    gradients = net.backward(["ip"], prob=np.eye(4, 3))

    assert set(gradients) == {"data", "ip"}
    assert gradients["data"].any()
    assert set(net.backward(end="prob")) == {"ip"}


def test_inputs_and_outputs_are_checked():
    net = caffe.Net("net.prototxt", caffe.TEST)

    with pytest.raises(NetError, match=r"inputs are \['data'\]"):
        net.forward(image=np.zeros((4, 6)))
    with pytest.raises(ShapeError, match="reshape the blob first"):
        net.forward(data=np.zeros((5, 6)))
    with pytest.raises(ShapeError, match=r"is \(4, 6\)"):
        net.forward(data=np.zeros((4, 7)))
    with pytest.raises(NetError, match=r"outputs are \['prob'\]"):
        net.backward(loss=np.zeros(1))


def test_forward_all_takes_any_number_of_items():
    net = caffe.Net("net.prototxt", caffe.TEST)
    items = np.random.default_rng(0).random((10, 6), np.float32)

    out = net.forward_all(["ip"], data=items)

    assert out["prob"].shape == (10, 3)
    one_by_one = [net.forward(data=np.tile(item, (4, 1)))["prob"][0].copy() for item in items]
    np.testing.assert_allclose(out["prob"], one_by_one, rtol=1e-5)


def test_reshaping_and_surgery(on_backend):
    net = caffe.Net("net.prototxt", caffe.TEST)

    net.blobs["data"].reshape(2, 6)
    net.reshape()
    net.params["ip"][1].data[...] = [0, 100, 0]
    net.forward()

    assert net.blobs["prob"].data.shape == (2, 3)
    np.testing.assert_allclose(net.blobs["prob"].data[:, 1], [1, 1])


def test_weights_are_copied_and_shared(on_backend):
    one, two = (caffe.Net("net.prototxt", caffe.TEST) for _ in range(2))

    one.save("w.caffemodel")
    two.copy_from("w.caffemodel")
    copied = two.params["ip"][0].data.copy()
    two.share_with(one)
    one.params["ip"][0].data[...] = 7

    assert not (copied == 7).any()
    assert (two.params["ip"][0].data == 7).all()


def test_callbacks_are_called_with_the_layers_index():
    net, seen = caffe.Net("net.prototxt", caffe.TEST), []
    net.before_forward(lambda i: seen.append(("before", i)))
    net.after_forward(lambda i: seen.append(("after", i)))

    net.forward(start="ip")

    assert seen[:2] == [("before", 1), ("after", 1)]


@pytest.mark.parametrize("name", ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"])
def test_solver_classes(folder, name):
    text = SOLVER.replace("momentum: 0.9", "momentum: 0.9 delta: 1e-8")
    if name in {"AdaGrad", "RMSProp"}:
        text = text.replace("momentum: 0.9", "")

    (folder / "solver.prototxt").write_text(text + f'type: "{name}"')
    solver = caffe.get_solver("solver.prototxt")

    assert type(solver).__name__ == f"{name}Solver"
    assert type(getattr(caffe, f"{name}Solver")("solver.prototxt")) is type(solver)


def test_a_solver_steps_snapshots_and_goes_on(on_backend):
    solver = caffe.SGDSolver("solver.prototxt")
    solver.net.blobs["data"].data[...] = np.random.default_rng(0).random((4, 6))
    solver.net.blobs["label"].data[...] = [0, 1, 2, 0]
    calls = []
    solver.add_callback(lambda: calls.append("start"), lambda: calls.append("gradients"))

    solver.step(2)
    solver.snapshot()
    weights = solver.net.params["ip"][0].data.copy()
    other = caffe.get_solver("solver.prototxt")
    other.restore("out_iter_2.solverstate")

    assert calls == ["start", "gradients"] * 2
    assert solver.iter == other.iter == 2
    assert solver.test_nets == []
    assert solver.param.max_iter == 4
    np.testing.assert_array_equal(other.net.params["ip"][0].data, weights)


def test_an_unknown_solver_type_names_the_known(folder):
    (folder / "solver.prototxt").write_text(SOLVER + 'type: "SDG"')

    with pytest.raises(ConfigError, match="SGD"):
        caffe.get_solver("solver.prototxt")


def test_modes_and_seeds():
    caffe.set_mode_cpu()
    caffe.set_random_seed(5)
    one = caffe.Net("net.prototxt", caffe.TEST).params["ip"][0].data.copy()
    two = caffe.Net("net.prototxt", caffe.TEST).params["ip"][0].data.copy()

    np.testing.assert_array_equal(one, two)
    if not any(d.startswith("cuda") for d in _devices()):
        with pytest.raises(DeviceError, match="cuda"):
            caffe.set_mode_gpu()


def _devices():
    from demitasse.device import available_devices

    return available_devices()


def test_messages_and_layer_types():
    message = caffe_pb2.NetParameter(name="n")

    assert caffe.proto.caffe_pb2.NetParameter.FromString(message.SerializeToString()) == message
    assert (caffe.TRAIN, caffe.TEST) == (caffe_pb2.TRAIN, caffe_pb2.TEST) == (0, 1)
    assert {"Convolution", "SoftmaxWithLoss", "Python"} <= set(caffe.layer_type_list())
