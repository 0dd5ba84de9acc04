"""ONNX Runtime on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from peers.cases import Case

__all__ = ["Measured"]


class Measured:
    """See ``peers.engines.Engine``."""

    def __init__(self, case: Case, folder: Path, threads: int) -> None:
        del case
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            folder / "net.onnx", options, providers=["CPUExecutionProvider"]
        )
        with np.load(folder / "batch.npz") as batch:
            self.inputs = {one.name: batch[one.name] for one in self.session.get_inputs()}
        self.about = {"onnxruntime": onnxruntime.__version__, "threads": threads}

    def check(self) -> dict[str, Any]:
        return {"prob": self.run()}

    def run(self) -> np.ndarray:
        return self.session.run(["prob"], self.inputs)[0]
