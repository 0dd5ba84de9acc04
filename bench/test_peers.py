"""The comparison with other engines, without the other engines."""

import dataclasses
import json

import numpy as np
import pytest
from nets import NETS
from peers.cases import AIMS, Case, choose
from peers.digest import apart, gradients
from peers.engines import find
from peers.recipe import operations

from demitasse import Net
from demitasse.proto import NetParameter, parse_text


@pytest.mark.parametrize("mode", ["forward", "step"])
@pytest.mark.parametrize("name", NETS)
def test_every_measured_net_is_translated(name, mode):
    net = parse_text(Case(name, 2, mode).prototxt(), NetParameter)

    made = list(operations(net))

    assert made[-1].kind == ("loss" if mode == "step" else "softmax")
    named = {"data", "label"}
    for operation in made:
        assert named.issuperset(operation.inputs)
        named.add(operation.name)


def test_translated_parameters_are_those_of_the_net():
    message = parse_text(Case("resnet50", 1, "step", scale=16).prototxt(), NetParameter)
    net = Net(message, "TRAIN", device="numpy", seed=1)

    named = [key for operation in operations(message) for key in operation.weights]

    there = [f"{layer.name}/{i}" for layer in net.layers for i in range(len(layer.blobs))]
    assert sorted(named) == sorted(there)


def test_a_layer_without_a_translation_is_named():
    net = parse_text('layer { name: "odd" type: "Crop" }', NetParameter)

    with pytest.raises(ValueError, match="'odd': a Crop layer"):
        list(operations(net))


def test_gradients_of_one_kind_are_compared_in_few_numbers():
    right = gradients([("ip/0", np.ones(1000, np.float32)), ("ip/1", np.zeros(3, np.float32))])
    got = gradients([("ip/0", np.full(1000, 1.01)), ("ip/1", np.full(3, 1e-8))])

    found = apart({"losses": [1, 2]} | got, {"losses": np.array([1, 2])} | right)

    assert (found.results, found.where) == (0, "ip/0")
    assert found.gradients == pytest.approx(0.01)
    assert found.agrees


@pytest.mark.parametrize("wrong", [0.51, np.nan])
def test_wrong_results_are_told_apart(wrong):
    assert not apart({"prob": np.array([wrong, 0.5])}, {"prob": np.array([0.5, 0.5])}).agrees


def test_cases_are_chosen_by_pattern_or_spelled_out():
    chosen = choose(["googlenet:8:*", "lenet:7:step"])

    assert [str(case) for case in chosen] == [
        "googlenet:8:forward", "googlenet:8:step", "lenet:7:step",
    ]  # fmt: skip


def test_every_aim_is_measured():
    assert {str(case) for case in choose([], aims=True)} == AIMS.keys()


def test_an_engine_is_found_with_its_device():
    assert find("demitasse:cuda:1").options == {"device": "cuda:1"}
    assert find("torch-cl-tuned").environment
    with pytest.raises(ValueError, match="no engine 'tensorfloww'"):
        find("tensorfloww")


@pytest.fixture
def report():
    pytest.importorskip("psutil", reason="the dependency group peers is not installed")
    from peers.report import Report, Result
    from peers.rounds import Row

    fine = apart({"prob": np.ones(1)}, {"prob": np.ones(1)})
    wrong = dataclasses.replace(fine, results=0.5)
    rows = [
        Row("demitasse:cpu", [0.001, 0.001, 0.005], [0, 0, 0], apart=fine, memory={"peak": 70}),
        Row("torch", [0.004], [0.5], apart=fine),
        Row("torch-cl", [0.002], [0], apart=wrong),
        Row("onnxruntime", error="not installed"),
        Row("peak", [1], [0], speeds=[(500.0, 60.0)]),
    ]
    case = Case("lenet", 64, "forward")
    return Report({"cores": 2}, {"rounds": 3}, [Result(case, {"forward_flop": 2e8}, rows)])


def test_a_report_gives_ratios_of_medians(report):
    text = report.markdown()

    assert "| lenet, batch 64 | 1 | 4 (4.00)~ | 2 (2.00)! | failed | 200 | 500 |" in text
    assert "4.00 (4.30) | 4.00 (1.60) torch |" in text
    assert "40% (60%)" in text
    assert "lenet:64:forward, torch-cl: results differ by 5.0e-01" in text
    assert "lenet:64:forward: others disturbed rounds of torch" in text


def test_a_report_is_json(report):
    [result] = json.loads(json.dumps(report.as_dict()))["results"]

    assert result["of_peak"] == pytest.approx(0.4)
    assert [row["ratio"] for row in result["rows"][:3]] == [1, 4, 2]
