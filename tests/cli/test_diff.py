"""``demitasse diff``: against another prototxt, weights, recorded blobs."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from demitasse import Net

OTHER = """
layer { name: "image" type: "Input" top: "image"
  input_param { shape { dim: 2 dim: 1 dim: 3 dim: 3 } } }
layer { name: "classes" type: "InnerProduct" bottom: "image" top: "classes"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "out" type: "Softmax" bottom: "classes" top: "out" }
"""


@pytest.fixture
def weights(project):
    """The net's own weights, as a.caffemodel; a function that writes others as b.caffemodel."""

    def write(name, change=lambda net: None):
        with Net("deploy.prototxt", "TEST", device="numpy", seed=5) as net:
            change(net)
            net.save(name)

    write("a.caffemodel")
    return write


def test_weights_that_are_the_same(weights, run):
    result = run("diff deploy.prototxt a.caffemodel --weights a.caffemodel")

    assert result.exit_code == 0, result.output
    assert "They agree" in result.stdout


def test_weights_that_differ_tell_where_first_and_where_most(weights, run):
    def change(net):
        net.params["ip"][0].mutable_cpu_data()[1, 2] += 0.5
        net.params["ip"][0].mutable_cpu_data()[2, 4] += 1

    weights("b.caffemodel", change)

    result = run("diff deploy.prototxt b.caffemodel --weights a.caffemodel")

    assert result.exit_code == 1
    assert "layer 'ip' (InnerProduct), parameter 0" in result.stdout
    assert "the value at [2, 4] is" in result.stdout
    assert "[1, 2]" in result.stdout


def test_what_one_side_lacks_is_a_difference(weights, run):
    Path("other.prototxt").write_text(OTHER)

    result = run("diff other.prototxt a.caffemodel --junit report.xml")

    assert result.exit_code == 1
    assert "layer 'classes' (InnerProduct) is not in a.caffemodel" in result.stdout
    assert "a.caffemodel has a layer 'ip', the net has none" in result.stdout
    assert ElementTree.parse("report.xml").getroot().get("failures") == "2"


def test_without_weights_of_the_net_only_shapes_are_compared(weights, run):
    result = run("diff deploy.prototxt a.caffemodel")

    assert result.exit_code == 0, result.output
    assert "without --weights" in result.stdout


def test_two_prototxts_compare_blobs_and_parameters(weights, run):
    text = Path("deploy.prototxt").read_text().replace("Softmax", "Sigmoid")
    Path("other.prototxt").write_text(text)

    result = run(
        "diff deploy.prototxt other.prototxt --weights a.caffemodel "
        "--other_weights a.caffemodel --device numpy --json"
    )

    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [one["what"] for one in found["differences"]] == [
        "top 'ip' with 'ip' by name",
        "top 'prob' with 'prob' by name",
        "parameter 0",
        "parameter 1",
    ]
    assert found["first_divergence"]["layer"] == "prob"
    assert "as Sigmoid on numpy on other.prototxt" in found["explained"]


def test_blobs_of_other_names_are_matched_by_order(weights, run):
    Path("other.prototxt").write_text(OTHER)

    result = run("diff deploy.prototxt other.prototxt --details")

    assert "top 'ip' with 'classes' by order" in result.stdout
    assert "top 'prob' with 'out' by order" in result.stdout
    assert "the net's 'data' is the input 'image' of other.prototxt, by order" in result.stdout


def test_recorded_blobs(weights, run):
    with Net("deploy.prototxt", "TEST", device="numpy", seed=5) as net:
        net.blobs["data"].mutable_cpu_data()[...] = 0.5
        net.forward()
        arrays = {name: np.array(blob.cpu_data()) for name, blob in net.blobs.items()}
    np.savez("right.npz", **arrays)
    np.savez("wrong.npz", **arrays | {"prob": arrays["prob"] + np.float32(0.01)})

    right = run("diff deploy.prototxt right.npz --weights a.caffemodel")
    wrong = run("diff deploy.prototxt wrong.npz --weights a.caffemodel")

    assert right.exit_code == 0, right.output
    assert wrong.exit_code == 1
    assert "First divergence (more than 0.0001): layer 'prob'" in wrong.stdout
    assert "0.00e+00" in wrong.stdout


def test_recorded_blobs_of_another_shape_are_told_with_their_shapes(weights, run):
    arrays = {"data": np.zeros((2, 1, 3, 3), np.float32), "prob": np.zeros((2, 7), np.float32)}
    np.savez("records.npz", **arrays)

    result = run("diff deploy.prototxt records.npz --weights a.caffemodel --json")

    assert result.exit_code == 1
    [told] = json.loads(result.stdout)["missing"]
    assert "'prob'" in told
    assert "(2, 7) in records.npz" in told


def test_records_without_inputs_want_inputs(weights, run):
    np.savez("records.npz", prob=np.zeros((2, 3), np.float32))
    np.savez("inputs.npz", data=np.zeros((2, 1, 3, 3), np.float32))

    assert run("diff deploy.prototxt records.npz").exit_code == 2
    assert run("diff deploy.prototxt records.npz --inputs inputs.npz").exit_code == 1


def test_inputs_of_other_sizes_are_refused(weights, run):
    Path("other.prototxt").write_text(OTHER.replace("dim: 2 ", "dim: 4 "))

    result = run("diff deploy.prototxt other.prototxt")

    assert result.exit_code == 3
    names = ("'image'", "(4, 1, 3, 3)", "data", "(2, 1, 3, 3)")
    assert all(name in result.stderr for name in names)


@pytest.mark.parametrize(("ending", "said"), [("txt", ".txt"), ("pt2", "--trust")])
def test_files_that_cannot_be_compared(weights, run, ending, said):
    Path(f"other.{ending}").write_text("")

    result = run(f"diff deploy.prototxt other.{ending}")

    assert result.exit_code == 3
    assert said in result.stderr


@pytest.mark.parametrize(
    ("file", "library", "extra"),
    [("net.onnx", "onnx", "demitasse[onnx]"), ("net.pt2 --trust", "torch", "demitasse[torch]")],
)
def test_a_framework_that_is_not_installed(weights, run, monkeypatch, file, library, extra):
    monkeypatch.setitem(sys.modules, library, None)

    result = run(f"diff deploy.prototxt {file}")

    assert result.exit_code == 3
    assert f"pip install '{extra}'" in result.stderr


def test_a_page(weights, run):
    pytest.importorskip("matplotlib")
    text = Path("deploy.prototxt").read_text().replace("Softmax", "Sigmoid")
    Path("other.prototxt").write_text(text)

    run("diff deploy.prototxt other.prototxt --html page.html")

    page = Path("page.html").read_text(encoding="utf-8")
    assert "<h1>Comparison of deploy.prototxt and other.prototxt</h1>" in page
    assert '<tr class="bad"><td>prob</td>' in page
