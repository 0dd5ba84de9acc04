"""The comparison with other engines, without the other engines."""

import dataclasses
import json

import numpy as np
import pytest
from nets import FORWARD_ONLY, NETS, OTHERS, TRAINED
from peers.cases import AIMS, Case, choose
from peers.digest import apart, gradients
from peers.engines import find
from peers.parts import PARTS
from peers.recipe import operations

from demitasse import Net
from demitasse.interop.onnx_export.converters import unsupported_reason
from demitasse.io.proto import NetParameter, parse_text

MEASURED = [
    *((name, "forward") for name in NETS | FORWARD_ONLY),
    *((name, "step") for name in sorted(TRAINED)),
]


@pytest.mark.parametrize(("name", "mode"), MEASURED)
def test_every_measured_net_is_translated(name, mode):
    net = parse_text(Case(name, 2, mode).prototxt(), NetParameter)

    made = list(operations(net))

    assert made[-1].name == ("loss" if mode == "step" else "prob")
    named = {"data", "label"}
    for operation in made:
        assert named.issuperset(operation.inputs)
        named |= {operation.name, f"{operation.name}/mask"}


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_net_has_one_result_and_a_form_in_onnx(name):
    message = parse_text(Case(name, 2, "forward", scale=4).prototxt(), NetParameter)

    net = Net(message, "TEST", device="numpy", seed=1)

    assert net.outputs == ["prob"]
    layers = [layer for layer in message.layer if layer.type != "Input"]
    assert [layer.name for layer in layers if unsupported_reason(layer)] == []


@pytest.mark.parametrize("name", ["resnet50", "lrcn", "fcn"])
def test_translated_parameters_are_those_of_the_net(name):
    message = parse_text(Case(name, 1, "forward", scale=16).prototxt(), NetParameter)
    net = Net(message, "TRAIN", device="numpy", seed=1)

    named = [key for operation in operations(message) for key in operation.weights]

    there = [f"{layer.name}/{i}" for layer in net.layers for i in range(len(layer.blobs))]
    assert sorted(named) == sorted(there)


def test_a_layer_without_a_translation_is_named():
    net = parse_text('layer { name: "odd" type: "Tile" }', NetParameter)

    with pytest.raises(ValueError, match="'odd': a Tile layer"):
        list(operations(net))


def test_gradients_of_one_kind_are_compared_in_few_numbers():
    right = gradients([("ip/0", np.ones(1000, np.float32)), ("ip/1", np.zeros(3, np.float32))])
    got = gradients([("ip/0", np.full(1000, 1.01)), ("ip/1", np.full(3, 1e-8))])

    found = apart({"losses": [1, 2]} | got, {"losses": np.array([1, 2])} | right)

    assert (found.results, found.where) == (0, "ip/0")
    assert found.gradients == pytest.approx(0.01)
    assert found.agrees


def test_the_first_images_of_a_batch_are_compared_alone():
    right = {"prob": np.array([[0.5, 0.5]])}

    assert apart({"prob": np.array([[0.5, 0.5], [0.9, 0.1]])}, right).agrees
    assert not apart({"prob": np.array([[0.4, 0.6], [0.5, 0.5]])}, right).agrees


@pytest.mark.parametrize("wrong", [0.51, np.nan])
def test_wrong_results_are_told_apart(wrong):
    assert not apart({"prob": np.array([wrong, 0.5])}, {"prob": np.array([0.5, 0.5])}).agrees


def test_cases_are_chosen_by_pattern_or_spelled_out():
    chosen = choose(["googlenet:8:*", "lenet:7:step"])

    assert [str(case) for case in chosen] == [
        "googlenet:8:forward", "googlenet:8:step", "lenet:7:step",
    ]  # fmt: skip


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_part_has_cases_and_engines_that_there_are(part):
    chosen = choose([], among=part.cases)

    assert [str(case) for case in chosen] == list(part.cases)
    for engine in part.engines:
        find(engine)


@pytest.mark.parametrize("name", ["segnet", "unet"])
def test_a_case_of_a_net_without_a_loss_is_a_forward_pass(name):
    with pytest.raises(ValueError, match="and forward, not step"):
        Case.parse(f"{name}:1:step")


def test_every_aim_is_measured():
    assert {str(case) for case in choose([], aims=True)} == AIMS.keys()


def test_an_engine_is_found_with_its_device():
    assert find("demitasse:cuda:1").options == {"device": "cuda:1", "keep": "outputs"}
    assert find("torch-cl-tuned").environment
    with pytest.raises(ValueError, match="no engine 'tensorfloww'"):
        find("tensorfloww")


@pytest.fixture
def report():
    pytest.importorskip("psutil", reason="the dependency group peers is not installed")
    from peers.report import Report, Result
    from peers.rounds import Row
    from peers.start import Start

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
    busy = Result(case, {}, [Row("torch", [0.004], [1], beside=[0.02], apart=fine)], loops=8)
    starts = [Start("lenet:1:forward", "torch", [3.0], [2.0], 300)]
    quiet = Result(case, {"forward_flop": 2e8}, rows)
    return Report({"cores": 2}, {"rounds": 3}, [quiet, busy], starts)


def test_a_ratio_is_the_median_over_the_rounds(report):
    result = report.results[0]
    ours, torch = result.rows[:2]
    ours.medians, torch.medians = [1.0, 2.0, 2.0], [3.0, 3.0, 6.0]

    assert result.ratio(torch) == 3
    assert result.ratio(result.row("onnxruntime")) is result.ratio(None) is None


def test_a_case_that_we_failed_has_times_of_the_others_and_no_ratios(report):
    result = report.results[0]
    result.rows[0].medians = []
    result.rows[2].apart = result.rows[1].apart

    assert result.best_torch.engine == "torch-cl"
    assert "| lenet, batch 64 | failed | 4 (-)~ | 2 (-) |" in report.markdown()


def test_a_report_gives_times_and_ratios(report):
    text = report.markdown()

    assert "| lenet, batch 64 | 1 | 4 (4.00)~ | 2 (2.00)! | failed | 200 | 500 |" in text
    assert "4.00 (4.30) | 4.00 (1.60) torch |" in text
    assert "40% (60%)" in text
    assert "lenet:64:forward, torch-cl: results differ by 5.0e-01" in text
    assert "lenet:64:forward: others disturbed rounds of torch" in text


def test_a_report_is_json(report):
    result, _ = json.loads(json.dumps(report.as_dict()))["results"]

    assert result["of_peak"] == pytest.approx(0.4)
    assert [row["ratio"] for row in result["rows"][:3]] == [1, 4, 2]


def test_a_report_tells_of_busy_machines_and_of_starts(report):
    text = report.markdown()

    assert "beside 8 busy loops" in text
    assert "| lenet:64:forward | 4 -> 20 |" in text
    assert "| lenet:1:forward | 3.00, 2.00 s, 300 MiB |" in text


def test_a_report_is_read_again_and_takes_newer_results(report, tmp_path):
    (tmp_path / "peers.json").write_text(json.dumps(report.as_dict()))
    again = type(report).read(tmp_path / "peers.json")
    before = again.markdown()

    again.add(dataclasses.replace(again.results[1], loops=4))

    assert before == report.markdown()
    assert [result.loops for result in again.results] == [0, 4]
