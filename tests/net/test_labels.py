"""Labels that are no classes, in nets that nobody trains."""

import numpy as np
import pytest
from expect_error import expect_error
from PIL import Image

from demitasse import Net
from demitasse.errors import DataError, ErrorCode
from demitasse.io.data import write_database
from demitasse.io.proto import NetParameter, parse_text

INPUTS = """
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 4 dim: 3 }} }} }}
layer {{ name: "label" type: "Input" top: "label" input_param {{ shape {{ dim: 4 }} }} }}
layer {{ name: "end" type: "{kind}" bottom: "x" bottom: "label" top: "end" {fields} }}
"""
IGNORES = {
    "Accuracy": "accuracy_param { ignore_label: 255 }",
    "SoftmaxWithLoss": "loss_param { ignore_label: 255 }",
}
KINDS = ["Accuracy", "SoftmaxWithLoss", "MultinomialLogisticLoss", "HingeLoss"]


def run(backend, kind, labels, fields="", phase="TEST"):
    param = parse_text(INPUTS.format(kind=kind, fields=fields), NetParameter)
    net = Net(param, phase, device=backend)
    net.blobs["x"].data[...] = np.arange(12).reshape(4, 3) / 12
    net.blobs["label"].data[...] = labels
    net.forward()
    return float(net.blobs["end"].data)


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("label", [3, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_label_that_is_no_class_is_named(kind, label, phase, backend):
    with pytest.raises(DataError) as caught:
        run(backend, kind, [0, 2, label, 1], phase=phase)

    error = caught.value
    assert ("ignore_label" in str(error)) == (kind in IGNORES)
    assert error.code == ErrorCode.OUT_OF_RANGE
    assert error.place.startswith(f"layer 'end' ({kind})")
    assert error.details == {
        "layer": "end",
        "blob": "label",
        "image": 2,
        "got": f"{label:g}",
        "expected": 3,
    }


@pytest.mark.parametrize("kind", IGNORES)
def test_ignored_labels_are_not_at_fault(kind, backend):
    assert np.isfinite(run(backend, kind, [0, 255, 2, 1], IGNORES[kind]))
    with expect_error(DataError, ErrorCode.OUT_OF_RANGE, image=3, got="254"):
        run(backend, kind, [0, 255, 2, 254], IGNORES[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_fractions_count_as_their_whole_part(kind, backend):
    assert np.isfinite(run(backend, kind, [0.5, 2.9, -0.5, 1]))


READERS = """
layer {{ name: "data" type: "{kind}" top: "data" top: "label" {source} }}
layer {{ name: "flat" type: "InnerProduct" bottom: "data" top: "flat"
  inner_product_param {{ num_output: 3 }} }}
layer {{ name: "accuracy" type: "Accuracy" bottom: "flat" bottom: "label" top: "accuracy" }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "flat" bottom: "label" top: "loss" }}
"""


def read(tmp_path, kind, source):
    (tmp_path / "net.prototxt").write_text(READERS.format(kind=kind, source=source))
    with Net(tmp_path / "net.prototxt", "TEST") as net:
        for _ in range(4):
            net.forward()


def test_the_line_of_a_list_is_named(tmp_path):
    lines = []
    for number, label in enumerate([0, 1, 2, 0, 7]):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png {label}")
    (tmp_path / "list.txt").write_text("\n".join(lines))
    folder = f'root_folder: "{tmp_path.as_posix()}/"'

    with expect_error(DataError, mentions=["list.txt", "'4.png'"], image=0, got="7"):
        read(
            tmp_path,
            "ImageData",
            f'image_data_param {{ source: "list.txt" {folder} batch_size: 2 }}',
        )


def test_the_key_of_a_record_is_named(tmp_path):
    images = [(np.zeros((1, 2, 2), np.uint8), label) for label in (0, 1, 2, 0, 1, 9, 0)]
    write_database(tmp_path / "db", images)

    with expect_error(DataError, mentions=["db", "'00000005'"], image=2, got="9"):
        read(tmp_path, "Data", 'data_param { source: "db" batch_size: 3 backend: LMDB }')
