"""Training whose calls are noted once and made again: the same bits as layer by layer."""

import numpy as np
import pytest
from replays import ALL_CALLS

from demitasse import Solver
from demitasse.backends.cpu import updates
from demitasse.backends.kernels.language.call_recorder import CallRecording
from demitasse.core.config import settings
from demitasse.io.proto import SolverParameter, parse_text
from demitasse.plan.replay import Replay

DATA = """
layer { name: "data" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 6 dim: 1 dim: 16 dim: 16 } shape { dim: 6 } } }
"""

PLAIN = """
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" param { lr_mult: 1 }
  param { lr_mult: 2 } convolution_param { num_output: 12 kernel_size: 5
  weight_filler { type: "xavier" } } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2" convolution_param {
  num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" }
layer { name: "lrn" type: "LRN" bottom: "conv2" top: "lrn" lrn_param { local_size: 3 } }
layer { name: "ip1" type: "InnerProduct" bottom: "lrn" top: "ip1"
  inner_product_param { num_output: 20 weight_filler { type: "xavier" } } }
layer { name: "relu3" type: "ReLU" bottom: "ip1" top: "ip1" }
"""

DROPS = PLAIN + 'layer { name: "drop" type: "Dropout" bottom: "ip1" top: "ip1" }'

RESIDUAL = """
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" convolution_param {
  num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "norm1" type: "BatchNorm" bottom: "conv1" top: "conv1" }
layer { name: "scale1" type: "Scale" bottom: "conv1" top: "conv1" scale_param { bias_term: true } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2" convolution_param {
  num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "norm2" type: "BatchNorm" bottom: "conv2" top: "norm2" }
layer { name: "sum" type: "Eltwise" bottom: "conv1" bottom: "norm2" top: "sum" }
layer { name: "relu2" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "conv3" type: "Convolution" bottom: "sum" top: "ip1" param { name: "again" }
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 bias_term: false
  weight_filler { type: "xavier" } } }
"""

SHARED = (
    RESIDUAL.replace('bottom: "sum" top: "ip1"', 'bottom: "sum" top: "again"')
    + """
layer { name: "conv4" type: "Convolution" bottom: "again" top: "ip1" param { name: "again" }
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 bias_term: false
  weight_filler { type: "xavier" } } }
"""
)

TILES = """
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" convolution_param {
  num_output: 64 kernel_size: 5 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2" convolution_param {
  num_output: 64 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" }
layer { name: "conv3" type: "Convolution" bottom: "conv2" top: "ip1" convolution_param {
  num_output: 64 kernel_size: 5 weight_filler { type: "xavier" } } }
"""

STRIDES = """
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" convolution_param {
  num_output: 32 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2" convolution_param {
  num_output: 64 kernel_size: 3 stride: 2 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "conv3" type: "Convolution" bottom: "conv2" top: "conv3" convolution_param {
  num_output: 64 kernel_size: 3 group: 2 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "conv4" type: "Convolution" bottom: "conv3" top: "conv4" convolution_param {
  num_output: 128 kernel_size: 1 group: 32 weight_filler { type: "xavier" } } }
layer { name: "norm4" type: "BatchNorm" bottom: "conv4" top: "conv4" }
layer { name: "conv5" type: "Deconvolution" bottom: "conv4" top: "ip1" convolution_param {
  num_output: 16 kernel_size: 3 stride: 2 weight_filler { type: "xavier" } } }
"""

ASIDE = (
    PLAIN
    + """
layer { name: "aside" type: "InnerProduct" bottom: "pool1" top: "aside"
  inner_product_param { num_output: 7 weight_filler { type: "xavier" } } }
layer { name: "silence" type: "Silence" bottom: "aside" }
"""
)

LOSS = """
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""

NETS = {
    "plain": PLAIN, "drops": DROPS, "residual": RESIDUAL, "shared": SHARED, "tiles": TILES,
    "strides": STRIDES, "aside": ASIDE,
}  # fmt: skip

SOLVER = 'base_lr: 0.05 lr_policy: "inv" gamma: 0.1 power: 0.75 momentum: 0.9 weight_decay: 0.001 '


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


def trained(net, fields="", between=None, **options):
    """Return losses and the bits of weights, gradients and blobs after some iterations."""
    param = parse_text(SOLVER + fields, SolverParameter)
    if "norm1" in net or "conv3" in net:
        param.base_lr = 0.001
    text = f'name: "trained" {DATA} {net} {LOSS}'
    param.MergeFrom(parse_text(f"net_param {{ {text} }}", SolverParameter))
    rng, losses = np.random.default_rng(5), []
    with Solver(param, device="cpu", seed=2, **options) as solver:
        if solver.net.device.backend.recorder is None:
            pytest.skip("there are no kernels")
        for turn in range(10):
            solver.net.blobs["data"].data = rng.normal(size=(6, 1, 16, 16))
            solver.net.blobs["label"].data = rng.integers(0, 10, 6)
            solver.step(1)
            losses.append(solver.smoothed_loss)
            if between is not None and turn >= 5:
                losses.append(between(solver, turn))
        blobs = [b for layer in solver.net.params.values() for b in layer]
        return losses, [(b.data.tobytes(), b.diff.tobytes()) for b in blobs]


def check(monkeypatch, played, *given, **options):
    with monkeypatch.context() as patch:
        patch.setattr(Replay, "run", lambda self, pass_over: pass_over())
        expected = trained(*given, **options)
    before = played[0]

    found = trained(*given, **options)

    assert found == expected
    assert played[0] > before


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("keep", [None, "outputs"], ids=["all", "outputs"])
def test_training(monkeypatch, played, net, keep):
    check(monkeypatch, played, NETS[net], keep_blobs=keep)


@ALL_CALLS
def test_gradients_and_values_are_noted_and_made_again(played):
    trained(PLAIN)

    assert played[0] > 5 * 15  # about twenty calls in each iteration but the first


@ALL_CALLS
def test_an_update_is_replayed_with_other_rates(monkeypatch):
    computed, apply = [], updates.apply
    monkeypatch.setattr(updates, "apply", lambda *given: computed.append(apply(*given)))

    trained(PLAIN)  # ten iterations

    assert len(computed) == 3


@pytest.mark.parametrize(
    "fields",
    [
        "iter_size: 2",
        "clip_gradients: 0.1",
        'type: "Adam"',
        'type: "Nesterov" regularization_type: "L1"',
        "debug_info: true",
    ],
)
def test_fields_of_the_solver(monkeypatch, played, fields):
    if "debug_info" in fields:
        assert trained(PLAIN, fields) == trained(PLAIN)
        return
    check(monkeypatch, played, PLAIN, fields)


def read_a_gradient(solver, turn):
    return float(solver.net.blobs["conv2"].diff.sum() + solver.net.params["conv2"][0].diff.sum())


def write_weights(solver, turn):
    blob = solver.net.params["conv1"][0]
    blob.data = blob.data * np.float32(0.9)


def write_a_gradient(solver, turn):
    solver.net.blobs["ip1"].diff[...] = 3
    solver.net.params["ip2"][0].diff = np.ones((10, solver.net.params["ip2"][0].shape[1]))


def backward_alone(solver, turn):
    solver.net.clear_param_diffs()
    solver.net.forward()
    solver.net.backward()
    solver.net.backward()
    return read_a_gradient(solver, turn)


def load_a_history(solver, turn):
    solver.history.load([array * np.float32(0.5) for array in solver.history.arrays()])


def freeze_for_an_iteration(solver, turn):
    solver.net.params["conv1"][0].lr_mult = turn % 2


def write_through_a_view(solver, turn):
    solver.view = solver.net.params["conv1"][0].data  # stays alive
    solver.view[...] *= np.float32(0.9)


def share_weights_with_a_clone(solver, turn):
    if turn == 6:
        solver.clone = solver.net.clone()
        solver.net.share_trained_layers_with(solver.clone)


def test_at_once_with_one_thread(monkeypatch, played):
    with settings.override(threads=1):
        check(monkeypatch, played, PLAIN)


@pytest.mark.parametrize(
    "between",
    [
        read_a_gradient, write_weights, write_a_gradient, backward_alone, load_a_history,
        freeze_for_an_iteration, write_through_a_view, share_weights_with_a_clone,
    ],
)  # fmt: skip
@pytest.mark.parametrize("net", ["plain", "residual"])
def test_what_somebody_does_between_iterations(monkeypatch, played, net, between):
    check(monkeypatch, played, NETS[net], between=between)


def test_weights_that_a_test_net_sees_change(monkeypatch, played):
    """Between two tests come updates, within one the weights stay."""
    rng = np.random.default_rng(3)
    batches = [(rng.normal(size=(6, 1, 16, 16)), rng.integers(0, 10, 6)) for _ in range(4)]

    def run():
        param = parse_text(SOLVER + "test_iter: 6 test_interval: 1000", SolverParameter)
        param.base_lr = 0.001
        text = f'name: "tested" {DATA} {RESIDUAL} {LOSS}'
        param.MergeFrom(parse_text(f"net_param {{ {text} }}", SolverParameter))
        found = []
        with Solver(param, device="cpu", seed=2) as solver:
            turns = iter(range(1000))

            def feed(net):
                data, label = batches[next(turns) % len(batches)]
                net.blobs["data"].data, net.blobs["label"].data = data, label

            solver.on_start.append(lambda: feed(solver.net))
            solver.on_test_batch.append(lambda *told: feed(solver.test_nets[0]))
            for _ in range(5):
                solver.step(3)
                found += [value.tobytes() for value in solver.test().values()]
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Replay, "run", lambda self, pass_over: pass_over())
        expected = run()

    assert run() == expected
    assert played[0] > 0
