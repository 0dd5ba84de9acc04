"""Ctrl-C right after any call of a kernel: what was done is known, or done again."""

import signal

import numpy as np
import pytest

from demitasse import Net, Solver
from demitasse.backends.kernels.language import call_recorder, status
from demitasse.backends.kernels.language.call_recorder import CallRecording
from demitasse.io.data.images.resize import resize_image
from demitasse.io.proto import SolverParameter, parse_text
from demitasse.plan.replay import Replay

pytestmark = [
    pytest.mark.skipif(not status().ready, reason=str(status())),
    pytest.mark.usefixtures("interrupts"),
]

WINDOWS = """
base_lr: 0.05 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.01 display: 0 random_seed: 3
snapshot_after_train: false
net_param {
  layer { name: "x" type: "DummyData" top: "x" dummy_data_param {
    shape { dim: 4 dim: 3 dim: 32 dim: 32 } data_filler { type: "gaussian" } } }
  layer { name: "y" type: "DummyData" top: "y" dummy_data_param {
    shape { dim: 4 } data_filler { type: "constant" value: 1 } } }
  layer { name: "few" type: "Convolution" bottom: "x" top: "few"
    convolution_param { num_output: 64 kernel_size: 5 pad: 2 weight_filler { type: "xavier" } } }
  layer { name: "relu" type: "ReLU" bottom: "few" top: "few" }
  layer { name: "pool" type: "Pooling" bottom: "few" top: "pool"
    pooling_param { kernel_size: 2 stride: 2 } }
  layer { name: "three" type: "Convolution" bottom: "pool" top: "three"
    convolution_param { num_output: 64 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
  layer { name: "five" type: "Convolution" bottom: "three" top: "five"
    convolution_param { num_output: 64 kernel_size: 5 weight_filler { type: "xavier" } } }
  layer { name: "ip" type: "InnerProduct" bottom: "five" top: "ip"
    inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
}
"""
NORMALISED = """
base_lr: 0.05 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.01 display: 0 random_seed: 3
snapshot_after_train: false
net_param {
  layer { name: "x" type: "DummyData" top: "x" dummy_data_param {
    shape { dim: 4 dim: 3 dim: 9 dim: 9 } data_filler { type: "gaussian" } } }
  layer { name: "y" type: "DummyData" top: "y" dummy_data_param {
    shape { dim: 4 } data_filler { type: "constant" value: 1 } } }
  layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
    convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
  layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
  layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
  layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
  layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
    pooling_param { kernel_size: 2 stride: 2 } }
  layer { name: "lrn" type: "LRN" bottom: "pool" top: "lrn" }
  layer { name: "pixels" type: "Convolution" bottom: "lrn" top: "pixels"
    convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
  layer { name: "more" type: "Convolution" bottom: "pixels" top: "more"
    convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
  layer { name: "mean" type: "Pooling" bottom: "more" top: "mean"
    pooling_param { pool: AVE kernel_size: 2 } }
  layer { name: "ip" type: "InnerProduct" bottom: "mean" top: "ip"
    inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
}
"""
SOLVERS = pytest.mark.parametrize("text", [WINDOWS, NORMALISED], ids=["windows", "normalised"])


class Calls:
    """Kernels that are run, of which one is followed by KeyboardInterrupt.

    Attributes:
        count: Runs so far.
        at: The run that is followed by it; 0 for none.
    """

    def __init__(self):
        self.count = self.at = 0
        self._run = call_recorder.run_kernel

    def run(self, *given: object) -> None:
        self._run(*given)
        self.made()

    def made(self) -> None:
        self.count += 1
        if self.count == self.at:
            signal.raise_signal(signal.SIGINT)  # which an update puts off to its end


@pytest.fixture
def calls(monkeypatch):
    calls = Calls()
    monkeypatch.setattr(call_recorder, "run_kernel", calls.run)

    def play(notes: CallRecording) -> None:
        for function, arguments, _ in notes.calls:
            function(*arguments)
            calls.made()

    monkeypatch.setattr(CallRecording, "play", play)
    return calls


@pytest.fixture(params=["one by one", "made again"])
def warm(request, monkeypatch):
    """Iterations to begin with: from then on kernels are run layer by layer, or as noted."""
    if request.param == "made again":
        return 5
    monkeypatch.setattr(Replay, "run", lambda self, pass_over: pass_over())
    return 2


def weights(net: Net) -> list[bytes]:
    return [blob.cpu_data().tobytes() for blob in net.structure.params_list]


def made(text):
    return Solver(parse_text(text, SolverParameter), device="cpu")


@SOLVERS
def test_an_iteration_cut_short_after_any_kernel_is_done_again_to_the_bit(calls, warm, text):
    with made(text) as solver, made(text) as whole:
        for one in (solver, whole):
            one.step(warm)
        calls.count = 0
        solver.step(1)
        number = calls.count
        assert number > 8

        for at in range(1, number + 1):
            calls.count, calls.at = 0, at
            with pytest.raises(KeyboardInterrupt):
                solver.step(2)  # one that is noted anew may have fewer calls than are made again
            calls.at = 0
            solver.step(1)
            whole.step(solver.iter - whole.iter)

            assert weights(solver.net) == weights(whole.net), f"after kernel {at} of {number}"
    assert all(np.isfinite(blob.data).all() for blob in whole.net.structure.params_list)


@SOLVERS
def test_an_iteration_cut_short_while_its_calls_are_noted_is_done_again(calls, text):
    with made(text) as whole:
        whole.step(2)
        calls.count = 0
        whole.step(1)
        number = calls.count
        whole.step(3)

    for at in range(1, number + 1, 7):
        with made(text) as solver:
            solver.step(2)
            calls.count, calls.at = 0, at
            with pytest.raises(KeyboardInterrupt):
                solver.step(1)
            calls.at = 0
            solver.step(6 - solver.iter)

            assert weights(solver.net) == weights(whole.net), f"after kernel {at} of {number}"


def test_an_image_whose_resizing_was_cut_short_is_resized_again(calls):
    image = np.random.default_rng(1).integers(0, 256, (3, 40, 30), np.uint8)
    expected = resize_image(image, 17, 21)
    number, calls.count = calls.count, 0

    calls.at = 1
    with pytest.raises(KeyboardInterrupt):
        resize_image(image, 17, 21)

    np.testing.assert_array_equal(resize_image(image, 17, 21), expected)
    assert number == 1
