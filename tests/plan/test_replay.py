"""Layers whose calls are noted once and made again: they compute what they compute one by one."""

import threading

import numpy as np
import pytest
from expect_error import expect_error
from replays import ALL_CALLS

from demitasse import Net
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.language.call_recorder import CallRecording
from demitasse.core.config import settings
from demitasse.errors import DeviceError, ErrorCode, NetError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.replay import Replay

NET = """
name: "stretch"
layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 1 dim: 3 dim: 12 dim: 12 } } }
layer { name: "first" type: "Convolution" bottom: "data" top: "first" convolution_param {
  num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "first" top: "first" }
layer { name: "scale" type: "Scale" bottom: "first" top: "first"
  scale_param { bias_term: true filler { type: "gaussian" std: 1 } } }
layer { name: "relu" type: "ReLU" bottom: "first" top: "first" }
layer { name: "pool" type: "Pooling" bottom: "first" top: "pool"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "wide" type: "Convolution" bottom: "pool" top: "wide" convolution_param {
  num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "deep" type: "Convolution" bottom: "pool" top: "deep" convolution_param {
  num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "wide" bottom: "deep" top: "sum" }
layer { name: "both" type: "Concat" bottom: "sum" bottom: "pool" top: "both" }
layer { name: "scores" type: "InnerProduct" bottom: "both" top: "scores" inner_product_param {
  num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "scores" top: "prob" }
"""

RNG = np.random.default_rng(7)

WEIGHTS = RNG.normal(size=(16, 16, 3, 3))


def made(keep=None):
    net = Net(parse_text(NET, NetParameter), "TEST", device="cpu", seed=3, keep_blobs=keep)
    if net.device.backend.recorder is None:
        pytest.skip("there are no kernels")
    rng = np.random.default_rng(1)
    net.params["norm"][0].data = rng.normal(size=16)
    net.params["norm"][1].data = rng.uniform(0.5, 1.5, 16)
    net.params["norm"][2].data = [1]
    return net


@pytest.fixture
def played(monkeypatch):
    """How many calls were made again so far."""
    counts = [0]
    play = CallRecording.play

    def counting(self):
        counts[0] += len(self)
        play(self)

    monkeypatch.setattr(CallRecording, "play", counting)
    return counts


def images(size=1):
    return RNG.normal(size=(size, 3, 12, 12)).astype(np.float32)


def outputs(net, x):
    return {name: value.tobytes() for name, value in net.predict(x).items()}


def look(net, x):
    """Return what a pass computes, by way of the blobs."""
    net.blobs["data"].data = x
    net.forward()
    return net.blobs["prob"].data.copy()


def one_by_one(monkeypatch, run):
    """Return what ``run`` returns where no calls are made again."""
    with monkeypatch.context() as patch:
        patch.setattr(Replay, "run", lambda self, pass_over: pass_over())
        return run()


def check(monkeypatch, played, scenario, *, keep=None, plays=True):
    """Fail where a scenario, run from the same beginning, depends on calls being made again."""
    state = RNG.bit_generator.state
    expected = one_by_one(monkeypatch, lambda: scenario(made(keep)))
    RNG.bit_generator.state = state
    before = played[0]

    found = scenario(made(keep))

    np.testing.assert_array_equal(found, expected)
    assert (played[0] > before) == plays


@pytest.mark.parametrize("keep", [None, "outputs"], ids=["all", "outputs"])
def test_new_images_pass_after_pass(monkeypatch, played, keep):
    check(monkeypatch, played, lambda net: [look(net, images()) for _ in range(6)], keep=keep)


@ALL_CALLS
def test_calls_are_noted_in_the_third_pass_and_made_again_from_then_on(played):
    net = made()
    counts = []
    for _ in range(5):
        look(net, images())
        counts.append(played[0])

    assert counts[:3] == [0, 0, 0]
    assert counts[3] > 5
    assert counts[4] == 2 * counts[3]


@ALL_CALLS
def test_a_softmax_is_one_of_the_calls_and_hides_no_nan(played):
    net = made()
    net.reshape()
    if "llvm" not in net.plan.steps()[-1].code:
        pytest.skip("no kernels can be made here")
    for _ in range(4):
        look(net, images())
    before, x = played[0], images()
    x[0, 1, 5, 5] = np.nan

    lost, found = look(net, x), look(net, images())

    assert np.isnan(lost).all()
    assert np.isfinite(found).all()
    assert played[0] > before
    assert all(step is None or step.replayable for step in net.plan.steps())


@pytest.mark.parametrize("layer", ["first", "norm", "scale", "deep", "scores"])
def test_a_parameter_that_is_changed(monkeypatch, played, layer):
    def scenario(net):
        found = []
        for turn in range(12):
            if turn in {5, 9}:
                net.params[layer][0].data = net.params[layer][0].data * np.float32(1.5)
            found.append(look(net, images()))
        return found

    check(monkeypatch, played, scenario)


@pytest.mark.parametrize("name", ["first", "pool", "deep", "both", "scores", "data"])
def test_a_blob_that_is_looked_at(monkeypatch, played, name):
    def scenario(net):
        found = []
        for turn in range(10):
            found.append(look(net, images()))
            if turn >= 5:
                found.append(net.blobs[name].data[0, 0].sum())
        return [x.sum() for x in found]

    check(monkeypatch, played, scenario)


@pytest.mark.parametrize("name", ["first", "pool", "sum", "prob"])
def test_a_blob_that_is_written_between_passes(monkeypatch, played, name):
    def scenario(net):
        found = []
        for turn in range(10):
            found.append(look(net, images()))
            if turn >= 5:
                net.blobs[name].data = np.full(net.blobs[name].shape, 7)
        return found

    check(monkeypatch, played, scenario)


def test_images_that_stay_the_same(monkeypatch, played):
    def scenario(net):
        net.blobs["data"].data = images()
        found = []
        for turn in range(12):
            if turn == 8:
                net.blobs["data"].data = images()
            net.forward()
            found.append(net.blobs["prob"].data.copy())
        return found

    check(monkeypatch, played, scenario)


def test_batches_of_other_sizes(monkeypatch, played):
    def scenario(net):
        found = []
        for size in (1, 1, 1, 1, 3, 3, 3, 3, 1, 1, 1, 1):
            net.blobs["data"].reshape(size, 3, 12, 12)
            found.append(look(net, images(size)).sum(axis=0))
        return found

    check(monkeypatch, played, scenario)


def test_a_part_of_the_layers(monkeypatch, played):
    def scenario(net):
        found = []
        for turn in range(8):
            found.append(look(net, images()))
            if turn > 4:
                net.blobs["pool"].data = RNG.normal(size=net.blobs["pool"].shape)
                net.forward("wide", "prob")
                found.append(net.blobs["prob"].data.copy())
        return found

    check(monkeypatch, played, scenario)


def test_weights_that_a_part_of_the_layers_has_read_before(monkeypatch, played):
    def scenario(net):
        found = []
        for turn in range(9):
            net.params["deep"][0].data = (turn + 1) * WEIGHTS
            if turn == 2:
                net.forward(end="deep")
            found.append(look(net, images()))
        return found

    check(monkeypatch, played, scenario)


def test_a_live_view_of_the_images(monkeypatch, played):
    def scenario(net):
        view = net.blobs["data"].data
        found = []
        for _ in range(8):
            view[...] = images()
            net.forward()
            found.append(net.blobs["prob"].data.copy())
        return found

    check(monkeypatch, played, scenario)


def test_weights_that_another_net_uses_too(monkeypatch, played):
    def scenario(net):
        other = made()
        other.share_trained_layers_with(net)
        other.blobs["data"].reshape(4, 3, 12, 12)
        found = []
        for turn in range(10):
            found.append(look(net, images()))
            if turn > 4:
                found.append(look(other, images(4))[:1])
            if turn == 7:
                net.params["deep"][0].data = -net.params["deep"][0].data
        return found

    check(monkeypatch, played, scenario)


def test_another_number_of_threads(monkeypatch, played):
    def scenario(net):
        found = [look(net, images()) for _ in range(5)]
        with settings.override(threads=1):
            found += [look(net, images()) for _ in range(5)]
        return [*found, look(net, images())]

    check(monkeypatch, played, scenario)


def test_a_net_that_several_threads_run_in_turn(monkeypatch, played):
    def scenario(net):
        found = []

        def run():
            found.extend(look(net, images()) for _ in range(5))

        for _ in range(3):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            run()
        return found

    check(monkeypatch, played, scenario)


def test_a_gap_where_stale_memory_is_poisoned(monkeypatch, played):
    def scenario(net):
        found = [look(net, images()) for _ in range(5)]
        with settings.override(debug_fill_stale=True):
            found += [look(net, images()) for _ in range(3)]
        return found + [look(net, images()) for _ in range(3)]

    check(monkeypatch, played, scenario)


def test_a_pass_that_was_cut_short_between_calls_is_done_again(monkeypatch, played):
    net, other = made(), made()
    for _ in range(5):
        x = images()
        look(net, x)

    def cut(self):
        self.calls[0][0](*self.calls[0][1])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CallRecording, "play", cut)
        with pytest.raises(KeyboardInterrupt):
            look(net, images())
        with expect_error(NetError, ErrorCode.BAD_STATE, mentions="forward"):
            net.backward()

    np.testing.assert_array_equal(look(net, x), look(other, x))


@pytest.mark.parametrize("passes", [0, 5], ids=["first", "made again"])
def test_a_call_that_fails_names_the_layers(monkeypatch, played, passes):
    net = made()
    for _ in range(passes):
        look(net, images())

    def fail(*given):
        raise DeviceError("a kernel failed: out of luck")

    if passes:
        monkeypatch.setattr(CallRecording, "play", fail)
    else:
        monkeypatch.setattr(call_recorder, "run_kernel", fail)

    with expect_error(
        DeviceError, place="layer 'first'" if passes else "layer '", mentions="a kernel"
    ):
        look(net, images())


@pytest.mark.filterwarnings("ignore:.*has no loss:UserWarning")
def test_backward_without_gradients_after_passes_of_other_shapes():
    text = """layer { name: "x" type: "Input" top: "x"
      input_param { shape { dim: 3 dim: 32 dim: 8 dim: 8 } } }
    layer { name: "norm" type: "BatchNorm" bottom: "x" top: "y" }
    layer { name: "scale" type: "Scale" bottom: "y" top: "y" }
    layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }"""
    net = Net(text, "TEST", device="cpu", seed=1)

    for images in (3, 3, 3, 2, 3, 2, 3):
        net.blobs["x"].reshape(images, 32, 8, 8)
        net.blobs["x"].data[...] = images
        net.forward()
        net.backward()

        assert not net.blobs["x"].diff.any()
