"""Trained models of other people, against recorded outputs of Caffe, or of OpenCV for SSD nets."""

import numpy as np
import pytest
from recorded_models import RecordedModel, recorded_names

from demitasse.net import Net

DETECTORS = ["libfacedetection_v1_ssd", "ultralight_rfb320"]


def check(model: RecordedModel, device: str) -> None:
    net = Net(model.net, "TEST", weights=model.weights, device=device)

    for key, value in model.inputs.items():
        net.set_input(key, value)
    net.forward()

    for name, expected in model.blobs.items():
        blob = name
        if blob not in net.blobs:  # OpenCV names outputs after layers
            blob = net.blob_names[net.structure.top_ids(net.layer_names.index(blob))[0]]
        found = net.blobs[blob].cpu_data()
        scale = max(1e-3, float(np.abs(expected).max()))
        np.testing.assert_allclose(
            found.reshape(expected.shape), expected, rtol=0, atol=2e-4 * scale
        )


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_match_opencv(name, reference_data, backend):
    check(RecordedModel.read(reference_data, name), backend)


@pytest.mark.parametrize("name", recorded_names())
def test_models_match_caffe(name, reference_data):
    check(RecordedModel.read(reference_data, name), "numpy")
