"""PyTorch: eager or compiled, channels first or last."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from demitasse.io.proto import NetParameter, read_text
from peers.cases import DECAY, MOMENTUM, SMALL, Case
from peers.digest import gradients
from peers.twin import twin

__all__ = ["Measured"]


class Measured:
    """See ``peers.engines.Engine``."""

    def __init__(
        self, case: Case, folder: Path, threads: int, device: str, channels_last: bool = False,
        compiled: bool = False, fused: bool = False,
    ) -> None:  # fmt: skip
        torch.set_num_threads(threads)
        torch.backends.cudnn.allow_tf32 = False
        self.case, self.device = case, torch.device(device)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        with np.load(folder / "weights.npz") as weights:
            net = twin(read_text(folder / "net.prototxt", NetParameter), weights, case.train)
        self.net = net.to(self.device, memory_format=layout)
        with np.load(folder / "batch.npz") as batch:
            self.data = torch.from_numpy(batch["data"]).to(self.device)
            if case.train:
                self.label = torch.from_numpy(batch["label"]).long().to(self.device)
        if self.data.ndim == 4:
            self.data = self.data.to(memory_format=layout)
        rate = json.loads((folder / "about.json").read_text())["rate"]
        self.parameters = dict(self.net.named_parameters())
        self.update = torch.optim.SGD(
            self.parameters.values(), rate, MOMENTUM, weight_decay=DECAY,
            **{"fused" if fused else "foreach": True},
        )  # fmt: skip
        self.call = torch.compile(self.net) if compiled else self.net
        build = [line.strip(" -") for line in torch.__config__.show().splitlines()]
        self.about = {
            "torch": torch.__version__,
            "built with": [x for x in build if "MKL" in x and "=" not in x],
            "threads": torch.get_num_threads(),
        }

    def check(self) -> dict[str, Any]:
        if not self.case.train:
            return {"prob": self._forward().cpu().numpy()}
        loss = self._backward()
        keys = {name: parameter.key for name, parameter in self.parameters.items()}
        found = gradients(
            (keys[name], p.grad.contiguous().cpu().numpy()) for name, p in self.parameters.items()
        )
        self.update.step()
        losses = [loss.item(), self._step().item()]
        for group in self.update.param_groups:
            group["lr"] *= SMALL
        return {"losses": losses, **found}

    def run(self) -> None:
        if self.case.train:
            self._step().item()
        else:
            self._forward()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @torch.inference_mode()
    def _forward(self) -> torch.Tensor:
        return self.call(self.data)

    def _backward(self) -> torch.Tensor:
        self.update.zero_grad()
        loss = self.call(self.data, self.label)
        loss.backward()
        return loss

    def _step(self) -> torch.Tensor:
        loss = self._backward()
        self.update.step()
        return loss
