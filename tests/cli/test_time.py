"""``demitasse time``: the lines Caffe prints, and the same as JSON."""

import json
import re
from pathlib import Path

import pytest
from cuda_host import cuda_at

from demitasse import Net
from demitasse.cli import timing
from demitasse.cli.timing import capture_status, measure_net, timing_table
from demitasse.core.config import settings


def test_layers_and_averages_are_logged(project, run):
    log = run("time -model net.prototxt -iterations 2").stderr

    text = [line.partition("] ")[2] for line in log.splitlines()]
    number = r"[\d.e+-]+ ms\."
    assert "*** Benchmark begins ***" in text
    assert "*** Benchmark ends ***" in text
    for line in [
        rf"Iteration: 2 forward-backward time: {number}",
        rf"        ip\tforward: {number}",
        rf"        ip\tbackward: {number}",
        rf"Average Forward pass: {number}",
        rf"Average Backward pass: {number}",
        rf"Average Forward-Backward: {number}",
        rf"Total Time: {number}",
    ]:
        assert any(re.fullmatch(line, found) for found in text), line


def test_as_json(project, run):
    result = run("time -model net.prototxt -iterations 2 -device numpy --json")

    found = json.loads(result.stdout)

    assert (found["device"], found["phase"], found["iterations"]) == ("numpy", "TRAIN", 2)
    assert [layer["name"] for layer in found["layers"]] == ["data", "ip", "loss"]
    assert found["layers"][0]["backward_ms"] is None
    assert all(layer["forward_ms"] > 0 for layer in found["layers"])


def test_forward_only(project, run):
    result = run("time -model net.prototxt -iterations 1 -forward_only --json")

    found = json.loads(result.stdout)

    assert found["backward_ms"] is None
    assert {layer["backward_ms"] for layer in found["layers"]} == {None}


def test_the_phase_can_be_chosen(project, run):
    found = json.loads(run("time -model net.prototxt -phase TEST -iterations 1 --json").stdout)

    assert "accuracy" in [layer["name"] for layer in found["layers"]]


def test_a_net_without_data_is_timed_on_zeros(project, run):
    assert run("time -model deploy.prototxt -iterations 1").exit_code == 0


def test_no_iterations_are_wrong_usage(project, run):
    assert run("time -model deploy.prototxt -iterations 0").exit_code == 2


def test_every_measurement_waits_for_the_device(project, monkeypatch):
    waits = []
    with Net("net.prototxt", "TRAIN") as net:
        monkeypatch.setattr(net, "synchronize", lambda: waits.append(net.plan.observer))

        measure_net(net, 3)

    by_itself = [watch for watch in waits if watch is not None]
    assert len(by_itself) >= 3 * 2 * len(net.layers) - 3  # the data layer has no backward pass
    assert len(waits) - len(by_itself) == (2 + 3) * 4


def test_nothing_else_runs_between_warming_up_and_measuring(project, monkeypatch):
    ran = []
    monkeypatch.setattr(timing, "peak", lambda device, dtype: ran.append("peak") or 1.0)
    with Net("net.prototxt", "TRAIN", device="numpy") as net:
        net.after_forward.append(lambda index: ran.append("layer"))
        measure_net(net, 2)

    assert ran.index("peak") == len(ran) - 1


def test_callbacks_are_taken_back(project):
    with Net("net.prototxt", "TRAIN") as net:
        measure_net(net, 1)

        hooks = (net.before_forward, net.after_forward, net.before_backward, net.after_backward)
        assert hooks == ([], [], [], [])


@pytest.mark.parametrize("verb", ["time -model", "summary"])
def test_a_net_that_is_wrong_is_3(project, run, verb):
    Path("bad.prototxt").write_text('layer { name: "x" type: "Rellu" }')

    result = run(f"{verb} bad.prototxt")

    assert result.exit_code == 3
    assert "ReLU" in result.stderr


def test_what_runs_each_layer_is_shown(project, run):
    shown = run("time -model deploy.prototxt -iterations 1 -device numpy").stdout
    found = json.loads(run("time -model deploy.prototxt -iterations 1 -device numpy --json").stdout)

    assert "numpy has no Step for Softmax" in shown
    assert "GFLOP/s" in shown
    assert [layer["code"] for layer in found["layers"]] == ["portable", "numpy", "portable"]
    assert found["peak_gflops"] > 0


# -- What is said of how a device is given a net's passes --


@pytest.fixture(params=[pytest.param("host", marks=pytest.mark.exhaustive), "cuda:0"])
def net(request, project):
    return Net("deploy.prototxt", "TEST", device=cuda_at(request.param))


def test_a_net_without_obstacles_is_launched_as_one(net):
    net.reshape()

    assert "captured as a CUDA graph" in capture_status(net)


def test_what_stands_in_the_way_is_said(net):
    net.reshape()
    net.after_forward.append(lambda index: None)

    said = capture_status(net)

    assert "callbacks" in said


def test_the_setting_stands_in_the_way(net):
    net.reshape()

    with settings.override(cuda_graphs="off"):
        said = capture_status(net)

    assert said.endswith("not captured as a CUDA graph: the setting cuda_graphs is off.")


def test_it_stands_below_the_times_of_layers(net):
    timed = measure_net(net, 1, backward=False)

    assert f"\n\n{capture_status(net)}\n\nTimes in ms." in timing_table(timed)


def test_a_device_that_records_nothing_has_nothing_said(project):
    net = Net("deploy.prototxt", "TEST", device="numpy")
    net.reshape()

    assert capture_status(net) == ""
