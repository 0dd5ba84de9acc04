"""Trained models of other people: exported, imported, and equal to what they were."""

import pytest
from expect_error import expect_error
from goldens import error
from recorded_models import RecordedModel, recorded_names

from demitasse.errors import ErrorCode, NetError
from demitasse.interop import export_onnx
from demitasse.interop.onnx_import import import_onnx

pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")

REFUSED = {"libfacedetection_v1_ssd": "NonMaxSuppression"}
"""Model -> the operator that has no layer."""


@pytest.mark.parametrize("name", recorded_names())
def test_a_model_comes_back(name, reference_data, tmp_path):
    model, file = RecordedModel.read(reference_data, name), tmp_path / "net.onnx"
    written = export_onnx(model.net, model.weights, file, shapes=model.shapes)

    if name in REFUSED:
        with expect_error(NetError, ErrorCode.UNSUPPORTED, mentions=REFUSED[name]):
            import_onnx(file, shapes=model.shapes)
        return
    net = import_onnx(file, shapes=model.shapes).net

    for one in (written.net, net):
        for key, array in model.inputs.items():
            one.set_input(key, array)
        one.forward()
    for output in written.outputs:
        wanted = written.net.blobs[output].cpu_data()
        assert error(net.blobs[output].cpu_data(), wanted) < 1e-5, output
