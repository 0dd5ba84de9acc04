"""Python layers as their users know them: their own objects in the nets that scripts make."""

import threading

import numpy as np
import pytest

import demitasse.compat.pycaffe as caffe
from demitasse.compat.pycaffe import _caffe
from demitasse.layers import python as python_layer

LAYERS = """
import queue
import threading

import numpy as np

import caffe
from caffe.proto import caffe_pb2


class RoIs(caffe.Layer):
    '''Gives what a script sets between two passes, as data layers of Faster R-CNN do.'''

    def setup(self, bottom, top):
        self.names = {"data": 0, "rois": 1}
        self.roidb = None
        top[0].reshape(1, 3, 4, 4)
        top[1].reshape(1, 5)

    def set_roidb(self, roidb):
        self.roidb = roidb

    def forward(self, bottom, top):
        image, rois = self.roidb
        for name, array in (("data", image), ("rois", rois)):
            top[self.names[name]].reshape(*array.shape)
            top[self.names[name]].data[...] = array.astype(np.float32, copy=False)

    def backward(self, top, propagate_down, bottom):
        pass

    def reshape(self, bottom, top):
        pass


class Fed(caffe.Layer):
    '''Takes batches that a thread of its own makes.'''

    def setup(self, bottom, top):
        self.batches = queue.Queue(2)
        self.thread = threading.Thread(target=self.make, daemon=True)
        self.thread.start()

    def make(self):
        for number in range(6):
            self.batches.put(np.full((2, 3), number))

    def reshape(self, bottom, top):
        top[0].reshape(2, 3)

    def forward(self, bottom, top):
        top[0].data[...] = self.batches.get()


class Seen(caffe.Layer):
    '''Keeps what it sees of itself.'''

    def setup(self, bottom, top):
        self.words = str(self.phase), self.phase == caffe.TRAIN, self.param_str, self.type
        self.options = eval(self.param_str)
        self.kinds = type(bottom).__name__, type(self.blobs).__name__
        self.blobs.add_blob(2)
        self.blobs[0].data[...] = self.options["start"]

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data + self.blobs[0].data[0]

    def backward(self, top, propagate_down, bottom):
        pass
"""


@pytest.fixture
def net_of(tmp_path, monkeypatch):
    """Make a net of Python layers in a folder of its own."""
    monkeypatch.setattr(python_layer, "_beside", {})
    (tmp_path / "rcnn_layers.py").write_text(LAYERS)

    def make(text, phase=caffe.TRAIN):
        (tmp_path / "net.prototxt").write_text(text)
        return caffe.Net(tmp_path / "net.prototxt", phase)

    return make


def layer(name, kind, tops, bottoms="", param_str=""):
    names = "".join(f' top: "{top}"' for top in tops)
    return (
        f'layer {{ name: "{name}" type: "Python" {bottoms}{names} python_param {{ '
        f'module: "rcnn_layers" layer: "{kind}" param_str: "{param_str}" }} }}'
    )


def test_a_script_calls_methods_of_its_own_layer(net_of):
    net = net_of(layer("input", "RoIs", ["data", "rois"]))
    image, rois = np.random.default_rng(0).random((1, 3, 6, 8)), np.ones((7, 5))

    net.layers[0].set_roidb((image, rois))
    out = net.forward()

    assert net.layer_dict["input"] is net.layers[0]
    assert isinstance(net.layers[0], caffe.Layer)
    assert net.layers[0].type == "Python"
    assert (out["data"].shape, out["rois"].shape) == ((1, 3, 6, 8), (7, 5))
    np.testing.assert_allclose(out["data"], image, rtol=1e-6)


def test_a_layer_may_have_threads(net_of):
    net = net_of(layer("input", "Fed", ["data"]))

    seen = [float(net.forward()["data"].mean()) for _ in range(6)]

    assert seen == list(range(6))


@pytest.mark.parametrize("phase", [caffe.TRAIN, caffe.TEST])
def test_a_layer_knows_its_phase_by_number_and_name(net_of, phase):
    net = net_of(
        'input: "x" input_shape { dim: 3 }'
        + layer("seen", "Seen", ["y"], 'bottom: "x"', "{'start': 5}"),
        phase,
    )

    out = net.forward(x=np.zeros(3))

    seen = net.layer_dict["seen"]
    assert seen.words == (str(phase), phase == caffe.TRAIN, "{'start': 5}", "Python")
    assert seen.kinds == ("RawBlobVec", "BlobVec")
    np.testing.assert_array_equal(out["y"], [5, 5, 5])
    assert seen.blobs is net.params["seen"]
    assert isinstance(seen.blobs, _caffe.BlobVec)


def test_nets_with_python_layers_run_in_threads_of_their_own(net_of):
    text = 'input: "x" input_shape { dim: 3 }' + layer(
        "seen", "Seen", ["y"], 'bottom: "x"', "{'start': 5}"
    )
    nets = [net_of(text) for _ in range(4)]
    found = []

    def run(net, number):
        for _ in range(5):
            out = net.forward(x=np.full(3, number))
        found.append((number, float(out["y"][0])))

    threads = [threading.Thread(target=run, args=pair) for pair in zip(nets, range(4), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(found) == [(0, 5), (1, 6), (2, 7), (3, 8)]


def test_a_solver_trains_with_a_layer_that_a_script_feeds(net_of, tmp_path):
    net_of(
        layer("input", "RoIs", ["data", "rois"])
        + 'layer { name: "ip" type: "InnerProduct" bottom: "rois" top: "y" '
        "inner_product_param { num_output: 1 } }"
        'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "y" top: "loss" }'
        'layer { name: "quiet" type: "Silence" bottom: "data" }'
    )
    (tmp_path / "solver.prototxt").write_text(
        f'net: "{(tmp_path / "net.prototxt").as_posix()}" base_lr: 0.1 lr_policy: "fixed" '
        f'snapshot_prefix: "{(tmp_path / "out").as_posix()}"'
    )
    solver = caffe.SGDSolver(tmp_path / "solver.prototxt")

    solver.net.layers[0].set_roidb((np.ones((1, 3, 4, 4)), np.ones((2, 5))))
    solver.step(3)

    assert solver.iter == 3
