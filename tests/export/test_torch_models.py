"""Trained models of other people as modules of PyTorch, against what Caffe or OpenCV recorded."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from goldens import error

from demitasse.export import export_torch

torch = pytest.importorskip("torch", reason="needs torch: nox -s frameworks")
pytest.importorskip("safetensors", reason="needs safetensors: nox -s frameworks")


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
    done = export_torch(
        models / entry["net"], models / entry["weights"], tmp_path / "net.py", shapes=shapes
    )
    names = {"__file__": str(done.files[0]), "__name__": "net"}
    exec(compile(done.files[0].read_text(), "net.py", "exec"), names)
    module = names["load"]()

    with torch.no_grad():
        found = module(*(torch.from_numpy(np.float32(inputs[one])) for one in module.inputs))

    outputs = found if isinstance(found, dict) else {module.outputs[0]: found}
    judge = refs / "caffe.npz" if (refs / "caffe.npz").exists() else refs / "opencv.npz"
    wanted = {key.replace("__", "/"): array for key, array in np.load(judge).items()}
    compared = [key for key in wanted if key in outputs]
    assert compared
    for key in compared:
        assert error(outputs[key].numpy(), wanted[key]) < 1e-5, key
    assert done.compare(inputs).worst.relative < 1e-5
