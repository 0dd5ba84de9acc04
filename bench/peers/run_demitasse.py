"""Demitasse, on any of its devices."""

import json
from pathlib import Path
from typing import Any

import numpy as np

import demitasse
from demitasse import Net
from demitasse.core.config import settings
from demitasse.io.proto import NetParameter, read_text
from peers.cases import SMALL, Case
from peers.digest import gradients

__all__ = ["Measured"]


class Measured:
    """See ``peers.engines.Engine``."""

    def __init__(
        self, case: Case, folder: Path, threads: int, device: str, keep: str | None
    ) -> None:
        settings.set("threads", threads)
        message = read_text(folder / "net.prototxt", NetParameter)
        self.case = case
        self.about = {"demitasse": demitasse.__version__, "device": device, "keep": keep or "all"}
        self.solver: Any = None
        if case.train:
            from peers.training import solver_of  # who only runs a net does not load it

            rate = json.loads((folder / "about.json").read_text())["rate"]
            self.solver = solver_of(message, rate, device=device, seed=1, keep_blobs=keep)
            self.net = self.solver.net
            self.net.load(folder / "weights.caffemodel")
        else:
            weights = folder / "weights.caffemodel"
            self.net = Net(message, "TEST", weights=weights, device=device, keep_blobs=keep)
        self.inputs = [self.net.blobs[name] for name in self.net.inputs]
        with np.load(folder / "batch.npz") as batch:
            for blob in self.inputs:
                blob.mutable_cpu_data()[...] = batch[blob.name]

    def check(self) -> dict[str, Any]:
        if not self.case.train:
            return {"prob": self._forward()}
        from peers.training import learnable

        net, solver = self.net, self.solver
        losses = [net.forward_backward()]
        found = gradients((key, blob.cpu_diff()) for key, blob in learnable(net))
        net.clear_param_diffs()
        solver.step(2)
        losses.append(solver.smoothed_loss)
        solver.param.base_lr *= SMALL
        return {"losses": losses, **found}

    def run(self) -> None:
        if not self.case.train:
            self._forward()
            return
        self._new_input()
        self.solver.step(1)
        self.net.synchronize()

    def _forward(self) -> np.ndarray:
        self._new_input()
        self.net.forward()
        return self.net.blobs["prob"].cpu_data()

    def _new_input(self) -> None:
        """Let the net believe that its inputs are new, so that none of its work is left out."""
        for blob in self.inputs:
            blob.mutable_cpu_data()
