"""Trained models give what OpenCV 4.11 gave for the same inputs."""

import json

import numpy as np
import pytest

from demitasse import cvdnn

MODELS = [
    "aodnet", "cifar10_quick_v1", "deeplandmark_1F", "fsrcnn_x3", "lenet_mnist_v1",
    "libfacedetection_v1_ssd", "libfacedetection_v1_ssd_heads", "mtcnn_det1", "mtcnn_det2",
    "openmv_smile", "resnet20_cifar10_aug", "riwei_facedet", "siamese_mnist_b",
    "squeezenet10_imagenet", "ultralight_rfb320", "ultralight_rfb320_heads", "vanillacnn_landmark",
    "waifu2x_upresnet10",
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_outputs_are_those_of_opencv(model, reference_data):
    entry = json.loads((reference_data / "refs" / "index.json").read_text())[model]
    recorded = reference_data / "refs" / model
    net = cvdnn.readNetFromCaffe(
        str(reference_data / "models" / entry["net"]),
        str(reference_data / "models" / entry["weights"]),
    )
    with np.load(recorded / "input.npz") as inputs:
        for name in inputs.files:
            net.setInput(inputs[name], name.replace("__", "/"))
    with np.load(recorded / "opencv.npz") as outputs:
        want = {name.replace("__", "/"): outputs[name] for name in outputs.files}

    got = dict(zip(want, net.forward(list(want)), strict=True))

    assert set(want) <= set(net.getUnconnectedOutLayersNames())
    for name, array in want.items():
        assert got[name].shape == array.shape
        assert np.abs(got[name] - array).max() <= 5e-6 * max(np.abs(array).max(), 1)


def test_every_model_that_was_recorded_is_tested(reference_data):
    index = json.loads((reference_data / "refs" / "index.json").read_text())

    assert sorted(MODELS) == sorted(m for m, entry in index.items() if "opencv" in entry["ref"])
