"""Nets as Caffe recorded them: construction, and trained models of other people."""

import json
from pathlib import Path

import numpy as np
import pytest
from goldens import describe, golden_rules
from recorded_models import RecordedModel, recorded_names
from zeros import fill_with_zeros

from demitasse import Net
from demitasse.errors import DemitasseError

# Caffe's own nets whose recording holds a refusal, and why ours may differ.
RECORDED_REFUSALS = {
    # its two data layers were replaced by one-channel stand-ins, which cannot be sliced in two
    "examples__siamese__mnist_siamese_train_test",
    # the recorder could not import the user's module `pyloss`; neither can we
    "examples__pycaffe__linreg",
    # none of its data layers is in phase TEST without the stage `test-on-train` or `test-on-test`
    "examples__mnist__mnist_autoencoder",
}


@pytest.mark.parametrize("case", golden_rules(), ids=str)
def test_rules_of_construction(case, backend):
    if case.refused:
        with pytest.raises(DemitasseError):
            case.net(device=backend)
        return

    net = case.net(device=backend)

    case.check(net)


def test_caffes_own_nets(reference_data, backend, monkeypatch):
    fill_with_zeros(monkeypatch)  # their shapes are recorded, not their values
    faults, seen = [], 0
    for recording in sorted((reference_data / "goldens_nets").glob("*.json")):
        if recording.name.startswith(("examples__", "models__")):
            for phase, want in json.loads(recording.read_text()).items():
                if phase in {"TRAIN", "TEST"}:
                    seen += 1
                    faults += compare(recording, phase, want, backend)

    assert seen == 58
    assert not faults, "\n".join(faults)


def compare(recording: Path, phase: str, want: dict, backend: str) -> list[str]:
    prototxt = recording.with_suffix("")
    name = f"{prototxt.stem} {phase}"
    try:
        got = json.loads(json.dumps(describe(Net(prototxt, phase, device=backend))))
    except DemitasseError as error:
        refused = "error" in want and prototxt.stem in RECORDED_REFUSALS
        return [] if refused else [f"{name}: {error}"]
    if "error" in want:
        return [f"{name}: accepted, Caffe refused: {want['error']}"]
    if "force_backward: true" in prototxt.read_text():
        # recorded before Caffe applies force_backward to its flags
        want["needs_backward"] = [layer["name"] for layer in want["layers"]]
    return [f"{name}: {key} differs" for key in got if key in want and got[key] != want[key]]


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


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("name", recorded_names())
def test_models_match_caffe(name, device, reference_data):
    check(RecordedModel.read(reference_data, name), device)
