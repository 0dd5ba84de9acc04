"""Trained models of other people, and what Caffe or OpenCV recorded of them."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from goldens import error

__all__ = ["RecordedModel", "recorded_names"]

INDEX = "refs/index.json"


@dataclass(frozen=True)
class RecordedModel:
    """A model with an input and the blobs that were computed of it."""

    net: Path
    weights: Path
    inputs: dict[str, np.ndarray]
    blobs: dict[str, np.ndarray]

    @classmethod
    def read(cls, folder: Path, name: str) -> Self:
        """Return one of the reference data; what Caffe recorded comes before OpenCV's."""
        entry, refs = json.loads((folder / INDEX).read_text())[name], folder / "refs" / name
        judge = refs / "caffe.npz" if (refs / "caffe.npz").exists() else refs / "opencv.npz"
        blobs = {key.replace("__", "/"): array for key, array in np.load(judge).items()}
        models = folder / "models"
        return cls(models / entry["net"], models / entry["weights"],
                   dict(np.load(refs / "input.npz")), blobs)  # fmt: skip

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its inputs."""
        return {key: array.shape for key, array in self.inputs.items()}

    def check(self, outputs: dict[str, np.ndarray], most: float) -> None:
        """Fail unless all recorded blobs that are among the outputs are what was recorded."""
        compared = [key for key in self.blobs if key in outputs]
        assert compared
        for key in compared:
            assert error(outputs[key], self.blobs[key]) < most, key


def recorded_names() -> list[str]:
    """Return the names of all models; none where the reference data is not there."""
    folder = os.environ.get("DEMITASSE_REFERENCE_DATA")
    index = Path(folder or "", INDEX)
    return sorted(json.loads(index.read_text())) if folder and index.exists() else []
