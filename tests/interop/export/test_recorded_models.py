"""Trained models, exported, against outputs recorded with Caffe or OpenCV."""

import numpy as np
import pytest
from recorded_models import RecordedModel, recorded_names

from demitasse.interop import export_onnx, export_torch


@pytest.mark.parametrize("name", recorded_names())
def test_an_onnx_file_computes_what_was_recorded(name, reference_data, tmp_path):
    pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: nox -s frameworks")
    model = RecordedModel.read(reference_data, name)

    done = export_onnx(model.net, model.weights, tmp_path / "net.onnx", shapes=model.shapes)

    session = onnxruntime.InferenceSession(done.files[0])
    outputs = dict(zip(done.outputs, session.run(None, model.inputs), strict=True))
    model.check(outputs, 1e-5)


@pytest.mark.parametrize("name", recorded_names())
def test_a_module_computes_what_was_recorded(name, reference_data, tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch: nox -s frameworks")
    pytest.importorskip("safetensors", reason="needs safetensors: nox -s frameworks")
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
