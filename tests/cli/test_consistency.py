"""``demitasse consistency``: layer by layer, and where devices part."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from demitasse.core.device import Device


def test_devices_that_agree(project, run):
    result = run("consistency net.prototxt --devices cpu numpy strict:device1 --details")

    assert result.exit_code == 0
    assert "They agree within 0.0001" in result.stdout
    assert "gradient of parameter 0" in result.stdout
    assert "strict:device1" in result.stdout


@pytest.mark.parametrize("devices", ["cpu numpy", "numpy cpu"])
@pytest.mark.parametrize(
    ("dtype", "storage", "rtol"), [("bfloat16", "bfloat16", 0.08), ("float16", "half", 0.01)]
)
def test_devices_without_16_bits_are_compared_within_their_rounding(
    project, run, devices, dtype, storage, rtol
):
    """One of the devices has the type, or the first says so."""
    result = run(f"consistency deploy.prototxt --dtype {dtype} --phase TEST --devices {devices}")

    there = storage in Device("cpu").backend.storages
    assert result.exit_code == (0 if there else 3)
    assert not there or f"They agree within {rtol}" in result.stdout


@pytest.fixture
def parted(monkeypatch):
    """A device whose inner products are off by a part in a hundred."""
    from demitasse.backends.test_devices import ReadonlyBackend

    class Namespace:
        def __getattr__(self, name):
            return getattr(np, name)

        def matmul(self, a, b):
            return np.matmul(a, b) * np.float32(1.01)

    monkeypatch.setattr(ReadonlyBackend, "xp", Namespace())


def test_devices_that_part_name_the_first_layer(project, run, parted):
    result = run("consistency deploy.prototxt --devices numpy readonly")

    assert result.exit_code == 1
    assert "First divergence (more than 0.0001): layer 'ip' (InnerProduct), top 'ip'" in (
        result.stdout
    )


@pytest.mark.parametrize("more", ["", "--json"])
def test_each_step_names_the_first_wrong_one(project, run, monkeypatch, more):
    from demitasse.backends.numpy.steps.inner_product import InnerProductStep

    forward = InnerProductStep.forward

    def wrong(self):
        forward(self)
        self.at.top[0].mutable_cpu_data()[0, 1] += 9

    monkeypatch.setattr(InnerProductStep, "forward", wrong)
    command = "consistency deploy.prototxt --devices numpy readonly -rtol 1e9"

    assert run(command).exit_code == 0
    result = run(f"{command} --each_step {more}")

    assert result.exit_code == 1
    assert "InnerProductStep" in result.stdout
    assert "layer 'ip' (InnerProduct), forward" in result.stdout


def test_each_step_agrees(project, run):
    assert run("consistency net.prototxt --devices cpu numpy --each_step").exit_code == 0


def test_what_is_allowed_can_be_said(project, run, parted):
    assert run("consistency deploy.prototxt --devices numpy readonly -rtol 0.2").exit_code == 0


def test_as_json(project, run, parted):
    result = run("consistency deploy.prototxt --json -devices numpy readonly")

    found = json.loads(result.stdout)

    assert found["agree"] is False
    assert found["first_divergence"]["layer"] == "ip"
    assert [d["layer"] for d in found["differences"]] == ["data", "ip", "prob"]


@pytest.mark.parametrize(
    "args",
    [
        "--devices cpu numpy deploy.prototxt",
        "--devices=cpu,numpy deploy.prototxt",
        "-devices cpu,numpy deploy.prototxt",
        "deploy.prototxt --phase TEST --devices cpu numpy --seed 3",
    ],
)
def test_devices_may_be_given_in_every_way(project, run, args):
    result = run(f"consistency {args}")

    assert result.exit_code == 0, result.output
    assert "against cpu" in result.stdout


@pytest.mark.parametrize("devices", ["", "--devices", "--devices cpu"])
def test_too_few_devices_are_wrong_usage(project, run, devices):
    assert run(f"consistency deploy.prototxt {devices}").exit_code == 2


def test_a_device_that_is_unknown_is_4(project, run):
    assert run("consistency deploy.prototxt --devices cpu abacus").exit_code == 4


def test_trained_weights_and_own_inputs(trained, run):
    np.savez("inputs.npz", data=np.ones((5, 1, 3, 3), np.float32))

    result = run(
        "consistency deploy.prototxt -weights run_iter_20.caffemodel -inputs inputs.npz "
        "-devices cpu numpy"
    )

    assert result.exit_code == 0
    assert "Loaded 1 layers" in result.stderr


def test_inputs_that_are_no_arrays_are_bad_data(project, run):
    result = run("consistency deploy.prototxt -devices cpu numpy -inputs net.prototxt")

    assert result.exit_code == 3
    assert "npz" in result.stderr


INDICES = """
layer { name: "words" type: "Input" top: "words" input_param { shape { dim: 2 dim: 6 } } }
layer { name: "pairs" type: "Reshape" bottom: "words" top: "pairs"
  reshape_param { shape { dim: 4 dim: 3 } } }
layer { name: "table" type: "Embed" bottom: "pairs" top: "y"
  embed_param { input_dim: 9 num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 dim: 3 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss"
  softmax_param { axis: 2 } }
"""


def test_inputs_that_are_indices_or_labels_are_no_noise(tmp_path, run):
    (tmp_path / "indices.prototxt").write_text(INDICES)

    result = run(f"consistency {tmp_path / 'indices.prototxt'} --devices numpy readonly --json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["agree"]


def test_a_row_for_each_layer_and_a_column_for_each_device(project, run):
    result = run("consistency net.prototxt --devices numpy cpu strict:device1")

    head, *rows = result.stdout.splitlines()
    assert head.split() == [
        "against", "numpy:", "cpu", "gradients", "strict:device1", "gradients"
    ]  # fmt: skip
    assert [row.split()[0] for row in rows[:3]] == ["data", "ip", "loss"]


def test_the_layers_that_differ_most_come_first(project, run, parted):
    result = run("consistency deploy.prototxt --devices numpy readonly --sort-by-error")

    layers = [row.split()[0] for row in result.stdout.splitlines()[1:4]]
    assert layers.index("data") == 2  # which does not differ
    assert "DIFFERS" in result.stdout.splitlines()[1]


def test_a_divergence_is_explained(project, run, parted):
    result = run("consistency deploy.prototxt --devices numpy readonly")

    assert "the value at [" in result.stdout
    assert "ulp apart; the layer ran as portable on readonly, as " in result.stdout
    assert "0.00e+00" in result.stdout


def test_training_is_compared_step_by_step(project, run):
    result = run("consistency net.prototxt --devices numpy readonly --steps 2 --json")

    steps = json.loads(result.stdout)["training"]
    assert [(step["iteration"], step["device"]) for step in steps] == [
        (1, "readonly"),
        (2, "readonly"),
    ]
    assert all(step["loss"] == pytest.approx(step["expected_loss"], rel=1e-5) for step in steps)
    assert all(step["worst"]["relative"] < 1e-5 for step in steps)


def test_training_needs_the_phase_of_training(project, run):
    assert run("consistency net.prototxt --devices cpu numpy --steps 2 --phase TEST").exit_code == 2


def test_a_build_server_gets_a_case_for_each_layer(project, run, parted):
    result = run("consistency deploy.prototxt --devices numpy readonly --junit report.xml")

    suite = ElementTree.parse("report.xml").getroot()

    assert result.exit_code == 1
    assert [case.get("name") for case in suite] == ["data", "ip", "prob"]
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    [failure] = suite[1]
    assert "InnerProduct" in failure.get("message")


def test_a_page_shows_the_layers_and_loads_nothing(project, run, parted):
    pytest.importorskip("matplotlib")

    run("consistency deploy.prototxt --devices numpy readonly --html page.html")

    page = Path("page.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert '<tr class="bad"><td>ip</td><td>InnerProduct</td>' in page
    assert "First divergence" in page
    assert not re.search(r"""(src|href)=["'](?!#)|url\((?!#)|<script""", page)


def test_names_in_a_net_cannot_put_anything_into_a_page_or_a_report(tmp_path, run):
    pytest.importorskip("matplotlib")
    name = "<script>alert(1)</script>\\x1b"
    (tmp_path / "net.prototxt").write_text(
        f'layer {{ name: "{name}" type: "Input" top: "a" input_param {{ shape {{ dim: 2 }} }} }}'
        f'layer {{ name: "b" type: "Power" bottom: "a" top: "b" }}'
    )

    result = run(
        f"consistency {tmp_path / 'net.prototxt'} --devices numpy readonly "
        f"--html {tmp_path / 'page.html'} --junit {tmp_path / 'report.xml'}"
    )

    assert result.exit_code == 0, result.output
    assert "<script" not in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "\x1b" not in (tmp_path / "report.xml").read_text(encoding="utf-8")
    ElementTree.parse(tmp_path / "report.xml")


STAGES = """
layer { name: "x" type: "Input" top: "x" top: "t"
  input_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" include { stage: "big" }
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "same" type: "Power" bottom: "x" top: "y" exclude { stage: "big" } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
"""


def test_the_net_of_the_stages_is_trained_in_the_dtype(project, run):
    Path("stages.prototxt").write_text(STAGES)
    command = "consistency stages.prototxt --devices numpy readonly --steps 2 --dtype float64"

    result = run(f"{command} --stage big --json")

    steps = json.loads(result.stdout)["training"]
    assert [step["worst"]["layer"] for step in steps] == ["ip", "ip"]
    assert all(step["worst"]["relative"] < 1e-14 for step in steps)


def test_a_net_without_parameters_is_not_trained(project, run):
    Path("stages.prototxt").write_text(STAGES)

    result = run("consistency stages.prototxt --devices numpy readonly --steps 2")

    assert result.exit_code == 3
    assert "got a net without parameters" in result.stderr
