"""Trained models of other people: exported, imported, and equal to what they were."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from goldens import error

from demitasse.errors import NetError
from demitasse.export import export_onnx
from demitasse.intake import import_onnx

pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")

REFUSED = {"libfacedetection_v1_ssd": "NonMaxSuppression"}
"""Model -> the operator that has no layer."""


def recorded():
    folder = os.environ.get("DEMITASSE_REFERENCE_DATA")
    index = Path(folder or "", "refs/index.json")
    return sorted(json.loads(index.read_text())) if folder and index.exists() else []


@pytest.mark.parametrize("name", recorded())
def test_a_model_comes_back(name, reference_data, tmp_path):
    entry = json.loads((reference_data / "refs/index.json").read_text())[name]
    models = reference_data / "models"
    inputs = dict(np.load(reference_data / "refs" / name / "input.npz"))
    shapes = {key: array.shape for key, array in inputs.items()}
    file = tmp_path / "net.onnx"
    written = export_onnx(models / entry["net"], models / entry["weights"], file, shapes=shapes)

    if name in REFUSED:
        with pytest.raises(NetError, match=REFUSED[name]):
            import_onnx(file, shapes=shapes)
        return
    net = import_onnx(file, shapes=shapes).net

    for one in (written.net, net):
        for key, array in inputs.items():
            one.set_input(key, array)
        one.forward()
    for output in written.outputs:
        wanted = written.net.blobs[output].cpu_data()
        assert error(net.blobs[output].cpu_data(), wanted) < 1e-5, output
