"""A net that is one stretch: a forward pass is its calls, and nothing of what surrounds passes."""

import logging
import threading

import numpy as np
import pytest
from replays import ALL_CALLS

from demitasse import Net
from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan import Plan

LAYERS = """
name: "whole"
layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "features" type: "Convolution" bottom: "data" top: "features" convolution_param {
  num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "features" top: "features" }
layer { name: "flat" type: "Flatten" bottom: "features" top: "flat" }
layer { name: "scores" type: "InnerProduct" bottom: "flat" top: "scores" inner_product_param {
  num_output: 10 weight_filler { type: "xavier" } } }
"""

LOSS = """
layer { name: "target" type: "Input" top: "target"
  input_param { shape { dim: 2 dim: 10 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "scores" bottom: "target" top: "loss" }
"""

RNG = np.random.default_rng(11)


def made(more="", phase="TEST", **options):
    net = Net(parse_text(LAYERS + more, NetParameter), phase, device="cpu", seed=3, **options)
    if net.device.backend.recorder is None:
        pytest.skip("there are no kernels")
    return net


@pytest.fixture
def planned(monkeypatch):
    """How many passes have gone through a plan's layers."""
    counts = [0]
    forward = Plan.forward

    def counting(self, start, end):
        counts[0] += 1
        return forward(self, start, end)

    monkeypatch.setattr(Plan, "forward", counting)
    return counts


def images():
    return RNG.normal(size=(2, 3, 8, 8)).astype(np.float32)


def look(net, x):
    net.blobs["data"].mutable_cpu_data()[...] = x
    net.forward()
    return net.blobs["scores"].cpu_data().copy()


def settled(more="", phase="TEST"):
    net = made(more, phase)
    for _ in range(5):
        look(net, images())
    return net


def expected(net, x):
    """Return what another net of the same parameters computes, layer by layer."""
    other = made()
    for name, blobs in other.params.items():
        for mine, theirs in zip(blobs, net.params[name], strict=True):
            mine.data = theirs.cpu_data()
    return look(other, x)


@ALL_CALLS
def test_layers_are_not_gone_through_any_more(planned):
    net = settled()
    before, x = planned[0], images()

    found = look(net, x)

    assert planned[0] == before
    np.testing.assert_array_equal(found, expected(net, x))


ONE_OF_ONE = """
layer { name: "joined" type: "Concat" bottom: "scores" top: "joined" }
layer { name: "cut" type: "Slice" bottom: "joined" top: "cut" }
layer { name: "last" type: "InnerProduct" bottom: "cut" top: "last" inner_product_param {
  num_output: 2 weight_filler { type: "xavier" } } }
"""


@ALL_CALLS
def test_layers_that_join_or_cut_one_blob_end_no_recording(planned):
    net = settled(ONE_OF_ONE)
    before, x = planned[0], images()

    scores = look(net, x)

    weight, bias = (blob.cpu_data() for blob in net.params["last"])
    assert planned[0] == before
    np.testing.assert_array_equal(scores, expected(net, x))
    np.testing.assert_allclose(net.blobs["last"].data, scores @ weight.T + bias, rtol=1e-5)


@ALL_CALLS
def test_views_that_are_held_are_taken_over_and_shown(planned):
    net = settled()
    data, scores = net.blobs["data"].data, net.blobs["scores"].data
    weights = net.params["scores"][0].data
    for turn in range(8):
        x = images()
        data[...] = x
        if turn == 5:
            weights *= 2
        before = planned[0]
        net.forward()
        np.testing.assert_array_equal(scores, expected(net, x))

    assert planned[0] == before + 1, "the last pass alone was that of the other net"


@ALL_CALLS
def test_views_are_those_of_the_net_alone(planned):
    net, other = settled(), made()
    held = [blob.data for blob in other.blobs.values()]
    before = planned[0]

    look(net, images())

    assert planned[0] == before
    assert held[0].shape == (2, 3, 8, 8)


def test_callbacks_are_called(planned):
    net, called = settled(), []
    net.after_forward.append(called.append)
    x = images()

    np.testing.assert_array_equal(look(net, x), expected(net, x))

    assert called == [0, 1, 2, 3, 4]


def test_debug_info_is_written(caplog):
    net = settled()
    net.debug_info = True
    with caplog.at_level(logging.INFO, "demitasse"):
        look(net, images())

    assert any("[Forward] Layer features" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("start", "end"), [("scores", None), (None, "relu"), ("relu", "scores")])
def test_parts_of_the_net_run_as_parts(start, end):
    net = settled()
    x = images()
    for index in range(4):
        look(net, x)
        net.blobs["features"].data = np.full((2, 16, 6, 6), index - 1)
        net.forward(start, end)
        before = net.blobs["scores"].cpu_data().copy()
        assert np.isfinite(before).all()

    np.testing.assert_array_equal(look(net, x), expected(net, x))


def test_another_shape_and_back(planned):
    net = settled()
    x = images()
    net.blobs["data"].reshape(1, 3, 8, 8)
    first = look(net, x[:1])
    net.blobs["data"].reshape(2, 3, 8, 8)

    np.testing.assert_array_equal(look(net, x), expected(net, x))
    np.testing.assert_allclose(first, look(net, x)[:1], rtol=1e-5, atol=1e-6)


def resized(net, count):
    """Run a number of images, and return them with the scores."""
    x = RNG.normal(size=(count, 3, 8, 8)).astype(np.float32)
    return x, net.predict({"data": x})["scores"]


def fresh(net, x):
    """Return what another net of the same parameters computes for these images alone."""
    other = made()
    for mine, theirs in zip(net.learnable_params, other.learnable_params, strict=True):
        theirs.data = mine.cpu_data()
    return other.predict({"data": x})["scores"]


SIZES = [8, 1, 3, 2, 8, 5, 4, 7, 6]


@ALL_CALLS
@pytest.mark.parametrize("kept", [None, "outputs"])
def test_sizes_in_turn_stay_prepared(planned, kept):
    net = made(keep_blobs=kept)
    for _ in range(6):
        for count in SIZES:
            resized(net, count)
    before, blobs = planned[0], net.blob_bytes

    found = [resized(net, count) for count in SIZES]

    assert planned[0] == before
    assert net.blob_bytes == blobs, "the sizes share their buffers"
    assert net.blobs["features"].shape == (6, 16, 6, 6)
    for x, scores in found:
        np.testing.assert_array_equal(scores, fresh(net, x))


def test_changes_between_sizes_in_turn_are_noticed():
    net = made()
    for _ in range(6):
        for count in SIZES:
            resized(net, count)
    changes = [
        lambda: net.params["features"][0].data.__imul__(2),
        lambda: net.blobs["features"].reshape(1, 16, 6, 6),
        lambda: net.params["scores"][1].reshape(20) or net.params["scores"][1].reshape(10),
        lambda: net.blobs["features"].set_cpu_data(np.zeros((6, 16, 6, 6), np.float32)),
        lambda: net.forward("relu"),
    ]
    for change in changes:
        resized(net, 6)
        change()
        for count in (3, 8, 3):
            x, scores = resized(net, count)
            np.testing.assert_array_equal(scores, fresh(net, x))


@pytest.mark.parametrize("phase", ["TEST", "TRAIN"])
def test_backward_follows_a_size_of_an_earlier_pass(phase):
    net, other = (made(phase=phase, force_backward=True) for _ in range(2))
    for _ in range(6):
        for count in SIZES:
            resized(net, count)
    x, _ = resized(net, 3)
    other.predict({"data": x})

    for one in (net, other):
        one.clear_param_diffs()
        one.blobs["scores"].diff = np.arange(30).reshape(3, 10)
        one.backward()

    for mine, theirs in zip(net.learnable_params, other.learnable_params, strict=True):
        assert mine.cpu_diff().any()
        np.testing.assert_array_equal(mine.cpu_diff(), theirs.cpu_diff())


def test_backward_follows():
    net, other = made(force_backward=True), made(force_backward=True)
    x, down = images(), RNG.normal(size=(2, 10))
    for turn in range(7):
        for one in (net, other):
            if one is net or turn == 6:
                look(one, x)
                one.clear_param_diffs()
                one.blobs["scores"].diff = down
                one.backward()

    for mine, theirs in zip(net.learnable_params, other.learnable_params, strict=True):
        assert mine.cpu_diff().any()
        np.testing.assert_array_equal(mine.cpu_diff(), theirs.cpu_diff())


def test_a_loss_is_computed_in_each_pass():
    net = made(LOSS)
    scores = np.zeros((2, 10), np.float32)
    for turn in range(8):
        net.blobs["target"].data = scores - turn
        net.blobs["data"].data = np.zeros((2, 3, 8, 8))
        assert net.forward() == pytest.approx(5 * turn**2)


def test_passes_in_training_are_counted():
    net = settled(phase="TRAIN")

    assert net.passes == 5
    look(net, images())
    assert net.passes == 6


def test_two_threads_are_kept_apart():
    net = settled()
    found = []

    def other():
        try:
            net.forward()
        except NetError as error:
            found.append(error.code)

    with net.lock:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    assert found == [ErrorCode.BAD_STATE]
