"""OpenCV's DNN module, which reads our files as they are."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from peers.cases import Case

__all__ = ["Measured"]


class Measured:
    """See ``peers.engines.Engine``."""

    def __init__(self, case: Case, folder: Path, threads: int) -> None:
        del case
        cv2.setNumThreads(threads)
        files = (str(folder / "net.prototxt"), str(folder / "weights.caffemodel"))
        self.net = cv2.dnn.readNetFromCaffe(*files)
        with np.load(folder / "batch.npz") as batch:
            self.data = batch["data"]
        self.about = {"opencv": cv2.__version__, "threads": cv2.getNumThreads()}

    def check(self) -> dict[str, Any]:
        return {"prob": self.run()}

    def run(self) -> np.ndarray:
        self.net.setInput(self.data, "data")
        return self.net.forward("prob")
