"""The net of a case, its inputs filled, and the work of one pass."""

import time
from collections.abc import Callable

import numpy as np
from peers.cases import Case
from peers.training import solver_of

from demitasse import Net
from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, parse_text

RATE = 1e-6
"""Learning rate of steps."""


class CaseNet:
    """The net of a case, with random inputs.

    Args:
        case: The net, batch and passes.
        device: The device, or its name.

    Attributes:
        work: One pass, or one step.
    """

    work: Callable[[], object]

    def __init__(self, case: Case, device: str | Device = "cpu") -> None:
        message = parse_text(case.prototxt(), NetParameter)
        if case.train:
            solver = solver_of(message, RATE, device=device, seed=1, keep_blobs="outputs")
            self.net, self.work = solver.net, solver.step
        else:
            self.net = Net(message, "TEST", device=device, seed=1, keep_blobs="outputs")
            self.work = self.net.forward
        rng = np.random.default_rng(0)
        self.inputs = [self.net.blobs[name] for name in self.net.inputs]
        for blob in self.inputs:
            labels = rng.integers(0, 2, blob.shape)
            values = labels if blob.name in ("cont", "label") else rng.normal(size=blob.shape)
            blob.mutable_cpu_data()[...] = values

    def once(self) -> float:
        """Run one pass over new input; return its seconds."""
        for blob in self.inputs:
            blob.mutable_cpu_data()
        begin = time.perf_counter()
        self.work()
        self.net.synchronize()
        return time.perf_counter() - begin
