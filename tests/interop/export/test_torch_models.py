"""Trained models of other people as modules of PyTorch, against what Caffe or OpenCV recorded."""

import numpy as np
import pytest
from recorded_models import RecordedModel, recorded_names

from demitasse.interop import export_torch

torch = pytest.importorskip("torch", reason="needs torch: nox -s frameworks")
pytest.importorskip("safetensors", reason="needs safetensors: nox -s frameworks")


@pytest.mark.parametrize("name", recorded_names())
def test_a_model_computes_what_was_recorded(name, reference_data, tmp_path):
    model = RecordedModel.read(reference_data, name)
    done = export_torch(model.net, model.weights, tmp_path / "net.py", shapes=model.shapes)
    names = {"__file__": str(done.files[0]), "__name__": "net"}
    exec(compile(done.files[0].read_text(), "net.py", "exec"), names)
    module = names["load"]()

    with torch.no_grad():
        given = [torch.from_numpy(np.float32(model.inputs[one])) for one in module.inputs]
        found = module(*given)

    outputs = found if isinstance(found, dict) else {module.outputs[0]: found}
    model.check({name: value.numpy() for name, value in outputs.items()}, 1e-5)
    assert done.compare(model.inputs).worst.relative < 1e-5
