"""Ctrl-C right after any call of the library: what was done is known, or done again."""

import numpy as np
import pytest

from demitasse import Net, Solver
from demitasse.backends.onednn import status
from demitasse.core.device import Device
from demitasse.io.proto import SolverParameter, parse_text

pytestmark = pytest.mark.skipif(not status().loaded, reason=str(status()))

SOLVER = """
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
CALLS = ("dnnl_primitive_execute", "dnnl_memory_set_data_handle")


class Interrupter:
    """Functions of the library, of which one call is followed by KeyboardInterrupt.

    Attributes:
        count: Calls so far.
        at: The call that is followed by it; 0 for none.
    """

    def __init__(self):
        self.count = self.at = 0

    def around(self, function):
        def call(*args):
            status = function(*args)
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt
            return status

        return call


@pytest.fixture
def interrupter(monkeypatch):
    found = Interrupter()
    library = Device("cpu").backend.engine.library
    for name in CALLS:
        monkeypatch.setattr(library, name, found.around(getattr(library, name)))
    return found


def made():
    return Solver(parse_text(SOLVER, SolverParameter), device="cpu")


def weights(net: Net) -> list[bytes]:
    return [blob.cpu_data().tobytes() for blob in net.structure.params_list]


def test_an_iteration_cut_short_after_any_call_is_done_again_to_the_bit(interrupter):
    with made() as solver, made() as whole:
        for one in (solver, whole):
            one.step(5)  # from now on calls that were noted are made again
        interrupter.count = 0
        solver.step(1)
        whole.step(1)
        calls = interrupter.count // 2
        cut = 0

        for at in range(1, calls + 1):
            interrupter.count, interrupter.at = 0, at
            try:
                solver.step(1)
            except KeyboardInterrupt:
                cut += 1
            interrupter.at = 0
            solver.step(1)
            whole.step(solver.iter - whole.iter)

            assert weights(solver.net) == weights(whole.net), f"after call {at} of {calls}"

    assert cut > 0.8 * calls > 8
    assert all(np.isfinite(blob.data).all() for blob in whole.net.structure.params_list)


def test_an_iteration_cut_short_while_its_calls_are_noted_is_done_again(interrupter):
    with made() as whole:
        whole.step(2)
        interrupter.count = 0
        whole.step(1)
        calls = interrupter.count
        whole.step(3)

    for at in range(1, calls + 1, 7):
        with made() as solver:
            solver.step(2)
            interrupter.count, interrupter.at = 0, at
            with pytest.raises(KeyboardInterrupt):
                solver.step(1)
            interrupter.at = 0
            solver.step(6 - solver.iter)

            assert weights(solver.net) == weights(whole.net), f"after call {at} of {calls}"
