"""OpenVINO on the CPU, in full precision, for the least time of one request."""

from pathlib import Path
from typing import Any

import numpy as np
import openvino

from peers.cases import Case

__all__ = ["Measured"]

SETTINGS = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}


class Measured:
    """See ``peers.engines.Engine``."""

    def __init__(self, case: Case, folder: Path, threads: int) -> None:
        del case
        settings = SETTINGS | {"INFERENCE_NUM_THREADS": threads}
        model = openvino.Core().compile_model(folder / "net.onnx", "CPU", settings)
        self.request = model.create_infer_request()
        with np.load(folder / "batch.npz") as batch:
            self.inputs = [batch[port.any_name] for port in model.inputs]
        self.about = {"openvino": openvino.__version__, "threads": threads, **SETTINGS}

    def check(self) -> dict[str, Any]:
        return {"prob": self.run().copy()}

    def run(self) -> np.ndarray:
        return self.request.infer(self.inputs, share_inputs=True, share_outputs=True)[0]
