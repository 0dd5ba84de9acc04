"""Trained models of other people, exported, against what Caffe or OpenCV recorded of them."""

import pytest
from recorded_models import RecordedModel, recorded_names

from demitasse.interop import export_onnx

pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: nox -s frameworks")


@pytest.mark.parametrize("name", recorded_names())
def test_a_model_computes_what_was_recorded(name, reference_data, tmp_path):
    model = RecordedModel.read(reference_data, name)

    done = export_onnx(model.net, model.weights, tmp_path / "net.onnx", shapes=model.shapes)

    session = onnxruntime.InferenceSession(done.files[0])
    outputs = dict(zip(done.outputs, session.run(None, model.inputs), strict=True))
    model.check(outputs, 1e-5)
