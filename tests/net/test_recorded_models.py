"""Trained models of other people, against recorded outputs of Caffe, or of OpenCV for SSD nets."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from demitasse.net import Net

DETECTORS = ["libfacedetection_v1_ssd", "ultralight_rfb320"]


def recorded() -> list[str]:
    folder = os.environ.get("DEMITASSE_REFERENCE_DATA")
    if not folder or not Path(folder, "refs/index.json").exists():
        return []
    names = json.loads(Path(folder, "refs/index.json").read_text())
    return sorted(name for name in names if Path(folder, "refs", name, "input.npz").exists())


def check(folder: Path, name: str, device: str) -> None:
    entry = json.loads((folder / "refs/index.json").read_text())[name]
    refs, models = folder / "refs" / name, folder / "models"
    judge = refs / "caffe.npz" if (refs / "caffe.npz").exists() else refs / "opencv.npz"
    net = Net(models / entry["net"], "TEST", weights=models / entry["weights"], device=device)

    for key, value in np.load(refs / "input.npz").items():
        net.set_input(key, value)
    net.forward()

    for key, expected in np.load(judge).items():
        blob = key.replace("__", "/")
        if blob not in net.blobs:  # OpenCV names outputs after layers
            blob = net.blob_names[net.structure.top_ids(net.layer_names.index(blob))[0]]
        found = net.blobs[blob].cpu_data()
        scale = max(1e-3, float(np.abs(expected).max()))
        np.testing.assert_allclose(
            found.reshape(expected.shape), expected, rtol=0, atol=2e-4 * scale
        )


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_match_opencv(name, reference_data, backend):
    check(reference_data, name, backend)


@pytest.mark.parametrize("name", recorded())
def test_models_match_caffe(name, reference_data):
    check(reference_data, name, "numpy")
