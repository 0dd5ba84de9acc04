"""Whole nets: forward, backward, a training step."""

import numpy as np
import pytest
from nets import NETS

from demitasse import Net
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.training import Solver

BATCHES = {"lenet": 64, "cifar10_quick": 100}


@pytest.fixture(params=BATCHES)
def solver(request, device, smoke) -> Solver:
    """A solver that trains the net on one batch, over and over."""
    batch = 2 if smoke else BATCHES[request.param]
    param = parse_text(
        'base_lr: 1e-5 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.0005 '
        "snapshot_after_train: false",
        SolverParameter,
    )
    param.net_param.CopyFrom(parse_text(NETS[request.param](batch, True), NetParameter))
    solver = Solver(param, device=device, seed=1)
    data, rng = solver.net.blobs["data"], np.random.default_rng(0)
    data.mutable_cpu_data()[...] = rng.normal(size=data.shape)
    solver.net.blobs["label"].mutable_cpu_data()[...] = rng.integers(0, 10, batch)
    solver.step(2)
    solver.net.synchronize()
    return solver


def test_forward(benchmark, solver):
    net = solver.net

    def forward():
        net.blobs["data"].mutable_cpu_data()  # as if it were new
        net.forward()
        net.synchronize()

    benchmark(forward)


def test_backward(benchmark, solver):
    net = solver.net
    net.forward()

    def backward():
        net.clear_param_diffs()
        net.backward(-1)
        net.synchronize()

    benchmark(backward)


def test_step(benchmark, solver):
    net = solver.net

    def step():
        net.blobs["data"].mutable_cpu_data()
        solver.step(1)
        net.synchronize()

    benchmark(step)


NOTHING = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 16 } } }
layer { name: "y" type: "ReLU" bottom: "x" top: "y" }
"""


def test_a_pass_over_nothing(benchmark, device):
    """Measure what a replayed pass costs besides its layers."""
    net = Net(NOTHING, "TEST", device=device, keep_blobs="outputs")
    for _ in range(8):
        net.forward()
    net.synchronize()

    benchmark(net.forward)
