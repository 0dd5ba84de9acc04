"""Trained models of other people, exported, against what Caffe or OpenCV recorded of them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from goldens import error

from demitasse.export import export_onnx

pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: nox -s frameworks")


def recorded():
    folder = os.environ.get("DEMITASSE_REFERENCE_DATA")
    index = Path(folder or "", "refs/index.json")
    return sorted(json.loads(index.read_text())) if folder and index.exists() else []


@pytest.mark.parametrize("name", recorded())
def test_a_model_computes_what_was_recorded(name, reference_data, tmp_path):
    entry = json.loads((reference_data / "refs/index.json").read_text())[name]
    refs, models = reference_data / "refs" / name, reference_data / "models"
    inputs = dict(np.load(refs / "input.npz"))
    shapes = {key: array.shape for key, array in inputs.items()}

    done = export_onnx(
        models / entry["net"], models / entry["weights"], tmp_path / "net.onnx", shapes=shapes
    )

    session = onnxruntime.InferenceSession(done.files[0])
    outputs = dict(zip(done.outputs, session.run(None, inputs), strict=True))
    judge = refs / "caffe.npz" if (refs / "caffe.npz").exists() else refs / "opencv.npz"
    wanted = {key.replace("__", "/"): array for key, array in np.load(judge).items()}
    compared = [key for key in wanted if key in outputs]
    assert compared
    for key in compared:
        assert error(outputs[key], wanted[key]) < 1e-5, key
