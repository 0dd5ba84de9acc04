"""Updates of ten million parameters, by each kind of solver."""

import numpy as np
import pytest

from demitasse.io.proto import SolverParameter, parse_text
from demitasse.training import RULES, Solver

NET = """
    layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 1 dim: {k} }} }} }}
    layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
             inner_product_param {{ num_output: {m} weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }}
"""


@pytest.fixture(params=RULES)
def solver(request, device, smoke) -> Solver:
    k, m = (8, 4) if smoke else (2560, 4096)
    momentum = "" if request.param in {"AdaGrad", "RMSProp"} else "momentum: 0.9"
    param = parse_text(
        f'type: "{request.param}" base_lr: 0.001 lr_policy: "fixed" {momentum} '
        f"snapshot_after_train: false net_param {{ {NET.format(k=k, m=m)} }}",
        SolverParameter,
    )
    solver = Solver(param, device=device, seed=1)
    solver.net.blobs["data"].mutable_cpu_data()[...] = np.random.default_rng(0).normal(size=(1, k))
    return solver


def test_update(benchmark, solver):
    net = solver.net

    def gradients():
        net.clear_param_diffs()
        net.forward_backward()
        net.synchronize()

    def update():
        solver.apply_update()
        net.synchronize()

    benchmark.pedantic(update, setup=gradients, rounds=30, warmup_rounds=3)
