"""The net of a case, its inputs filled, and the work of one pass."""

import time

import numpy as np
from peers.cases import Case

from demitasse import Net
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.training import Solver

SOLVER = (
    'base_lr: 1e-6 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.0005 '
    "snapshot_after_train: false"
)


class CaseNet:
    """The net of a case on the cpu device, with random inputs.

    Args:
        case: The net, batch and passes.
    """

    def __init__(self, case: Case) -> None:
        message = parse_text(case.prototxt(), NetParameter)
        if case.train:
            param = parse_text(SOLVER, SolverParameter)
            param.net_param.CopyFrom(message)
            solver = Solver(param, device="cpu", seed=1, keep_blobs="outputs")
            self.net, self.work = solver.net, lambda: solver.step(1)
        else:
            self.net = Net(message, "TEST", device="cpu", seed=1, keep_blobs="outputs")
            self.work = self.net.forward
        rng = np.random.default_rng(0)
        self.inputs = [self.net.blobs[name] for name in self.net.inputs]
        for blob in self.inputs:
            labels = rng.integers(0, 2, blob.shape)
            values = labels if blob.name == "label" else rng.normal(size=blob.shape)
            blob.mutable_cpu_data()[...] = values

    def once(self) -> float:
        """Run one pass over new input; return its seconds."""
        for blob in self.inputs:
            blob.mutable_cpu_data()
        begin = time.perf_counter()
        self.work()
        self.net.synchronize()
        return time.perf_counter() - begin
