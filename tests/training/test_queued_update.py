"""On a device that queues its work, the loss is read when the update has been queued already.

Whatever a run does about losses, it does as on a device that does not queue.
"""

import logging

import numpy as np
import pytest
from cuda_host import host_cuda
from expect_error import expect_error

from demitasse import Net, Solver
from demitasse.core.device import Device
from demitasse.errors import DataError, NetError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.net.execution import Loss
from demitasse.training.updater import Updater

NET = """
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 5 } shape { dim: 4 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" }
"""
FIELDS = 'base_lr: 0.1 lr_policy: "step" gamma: 0.5 stepsize: 2 random_seed: 1'
TYPES = ["SGD", "Adam", "AdaDelta", "AdamW", "LARS", "LAMB"]


@pytest.fixture(params=["kernels", "portable"])
def device(request, monkeypatch):
    """A device that queues its work, or says so: with the GPU's kernels, or without any."""
    if request.param == "kernels":
        return host_cuda()
    device = Device("strict:device1")
    monkeypatch.setattr(type(device.backend), "queues", True)
    return device


@pytest.fixture
def make(tmp_path):
    """Makes a solver."""

    def make(device, fields="", **options):
        (tmp_path / "net.prototxt").write_text(NET)
        path = tmp_path / "solver.prototxt"
        path.write_text(f'net: "net.prototxt" {FIELDS} {fields}')
        return Solver(path, device=device, **options)

    return make


@pytest.fixture
def order(monkeypatch):
    """What is done in turn: "update", and "read" when the host waits."""
    done = []

    def noted(name, method):
        def call(self, *args, **options):
            done.append(name)
            return method(self, *args, **options)

        return call

    monkeypatch.setattr(Updater, "apply", noted("update", Updater.apply))
    monkeypatch.setattr(Loss, "_to_host", noted("read", Loss._to_host))
    return done


def state(solver):
    """Weights and history of a run, its iteration and its losses."""
    arrays = [blob.cpu_data().copy() for blob in solver.net.learnable_params]
    arrays += [part.cpu_data().copy() for part in solver.history.memories]
    return arrays, solver.iter, solver.smoothed_loss, solver.lr, solver.net.passes


def assert_same(got, wanted):
    for a, b in zip(got[0], wanted[0], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_equal(got[1:], wanted[1:])


def spoil(solver, value):
    """Give the batches of a solver another label, or its data another value."""
    array = np.full(4, value, "float32")
    data = solver.net.layers[0]
    ran = data.forward

    def forward(bottom, top):
        ran(bottom, top)
        blob = top[0] if np.isnan(value) else top[1]
        blob.mutable_cpu_data().reshape(-1)[:4] = array

    data.forward = forward


def test_it_is_read_after_the_update(make, device, order):
    make(device).step(2)

    assert order == ["update", "read", "update", "read"]


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ("display: 1", ["update", "read"]),
        ("display: 1 debug_info: true", ["read", "update"]),
        ("iter_size: 2", ["read", "read", "update"]),
        ('lr_policy: "plateau" plateau_winsize: 5', ["read", "update"]),
        ("clip_gradients: 0.01", ["update", "read"]),
    ],
)
def test_it_is_read_before_where_something_needs_it(make, device, order, fields, first):
    if "plateau" in fields:
        fields = fields.replace('lr_policy: "plateau"', "")
        solver = make(device, fields)
        solver.param.lr_policy = "plateau"
    else:
        solver = make(device, fields)

    solver.step(2)

    assert order[: len(first)] == first


def test_it_is_read_before_callbacks_and_before_updates_of_ones_own(make, device, order, tmp_path):
    class Own(Solver):
        def apply_update(self):
            order.append(self.smoothed_loss)
            super().apply_update()

    make(device)
    own = Own(tmp_path / "solver.prototxt", device=device)
    own.step(1)
    called = make(device)
    called.on_gradients_ready.append(lambda: order.append(called.smoothed_loss))
    called.step(1)

    assert order == 2 * ["read", own.smoothed_loss, "update"]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("fields", ["", "clip_gradients: 0.1 weight_decay: 0.01"])
def test_the_run_is_the_same(make, device, kind, fields, monkeypatch):
    late = make(device, fields, type=kind)
    late.step(5)
    monkeypatch.setattr(type(device.backend), "queues", False)
    early = make(device, fields, type=kind)

    early.step(5)

    assert_same(state(late), state(early))


@pytest.mark.parametrize("kind", TYPES)
def test_an_update_that_a_bad_loss_held_back_is_made_after_all(
    make, device, kind, monkeypatch, caplog
):
    late = make(device, type=kind)
    late.step(1)
    spoil(late, float("nan"))
    with caplog.at_level(logging.WARNING):
        late.step(1)
    assert all(name in caplog.text for name in ("nan at iteration 1", "top 'data'"))
    monkeypatch.setattr(type(device.backend), "queues", False)
    early = make(device, type=kind)

    early.step(1)
    spoil(early, float("nan"))
    early.step(1)

    assert_same(state(late), state(early))


@pytest.mark.parametrize(
    ("value", "error", "mentions"),
    [
        (float("nan"), NetError, ["nan at iteration 1", "learning rate", "0.1"]),
        (3, DataError, ["label 3", "image 0"]),
    ],
)
def test_a_loss_that_ends_the_run_leaves_it_as_it_was(make, device, value, error, mentions):
    solver = make(device, on_nonfinite="raise")
    solver.step(1)
    before = state(solver)
    whole = solver.net.layers[0].forward

    spoil(solver, value)
    with expect_error(error, mentions=mentions):
        solver.step(1)

    assert_same(state(solver), before)
    solver.net.layers[0].forward = whole
    solver.net.blobs["label"].mutable_cpu_data().fill(1)
    solver.step(1)
    assert solver.iter == 2


def test_passes_are_queued_before_anybody_waits(device):
    net = Net(parse_text(NET, NetParameter), "TRAIN", device=device, seed=1)
    ran = []
    net.after_backward.append(ran.append)

    loss = net.execution.queue_passes()

    assert ran
    assert loss._number is None
    assert loss.read() == loss.wait() == float(net.blobs["loss"].cpu_data())


def test_gradients_of_a_batch_that_was_refused_are_not_whole(device):
    net = Net(parse_text(NET, NetParameter), "TRAIN", device=device, seed=1)
    net.layers[0].forward = lambda bottom, top: top[1].mutable_cpu_data().fill(7)

    with expect_error(DataError, mentions=["label 7", "image 0"]):
        net.forward_backward()

    with pytest.raises(NetError):
        net.update()
