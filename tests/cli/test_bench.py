"""``demitasse bench``: cases side by side, files of pytest-benchmark, regressions."""

import json
import os
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cli_errors import failed_with
from wide_net import NET

from demitasse import Net
from demitasse.benchmark import peers
from demitasse.benchmark.case import load_values, with_batch
from demitasse.core.host import HostMemory
from demitasse.errors import ErrorCode

QUICK = "--rounds 2 --seconds 0"


def test_every_combination_has_a_row(project, run):
    result = run(
        f"bench net.prototxt --devices numpy readonly --batches 2 5 --phases train {QUICK}"
    )

    lines, _, about = result.stdout.partition("\n\n")
    rows = [row.split()[:4] for row in lines.splitlines()[1:]]
    assert result.exit_code == 0, result.output
    load = {"load"} if hasattr(os, "getloadavg") else set()
    assert {"processor", "cores", "date", "numpy"} | load <= set(about.split())
    assert rows == [["net", "TRAIN", d, b] for b in ("2", "5") for d in ("numpy", "readonly")]


def test_a_saved_run_is_one_of_pytest_benchmark(project, run):
    run(f"bench deploy.prototxt --devices numpy --batches 3 {QUICK} --layers --save a.json")

    [entry] = json.loads(Path("a.json").read_text())["benchmarks"]
    compare = [sys.executable, "-m", "pytest_benchmark", "compare", "a.json"]
    done = subprocess.run(compare, capture_output=True, text=True, check=False)

    assert entry["name"] == "deploy[numpy-3-test]"
    assert entry["stats"]["rounds"] == 2
    assert entry["extra_info"]["images_per_second"] == pytest.approx(3 / entry["stats"]["median"])
    assert set(entry["extra_info"]["layers_ms"]) >= {"ip", "prob"}
    assert done.returncode == 0
    assert "deploy[numpy-3-test]" in done.stdout


def test_peers_have_rows_and_the_net_a_ratio(project, run):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")

    result = run(f"bench deploy.prototxt --devices numpy --batches 3 --peers {QUICK}")

    lines, _, about = result.stdout.partition("\n\n")
    head, ours, *peers = lines.splitlines()
    assert result.exit_code == 0, result.output
    assert head.endswith("of best peer")
    assert float(ours.split()[-1]) > 0
    assert "onnxruntime" in [row.split()[2] for row in peers]
    assert "onnxruntime" in about


def test_a_peer_with_other_results_is_not_timed(project, run, monkeypatch):
    pytest.importorskip("onnx")

    given = []

    def load(path, inputs, threads):
        given.append(threads)
        return lambda: {"prob": np.ones((3, 3), np.float32)}

    monkeypatch.setattr(peers, "wanted_threads", lambda: 5)  # the setting
    monkeypatch.setitem(peers.PEERS, "onnxruntime", load)
    monkeypatch.setattr(peers, "find_spec", lambda name: name == "onnxruntime" or None)
    monkeypatch.setattr(peers.metadata, "version", lambda name: "1")

    result = run(f"bench deploy.prototxt --devices numpy --batches 3 --peers {QUICK}")

    assert result.exit_code == 1
    assert "onnxruntime differs from the net" in result.stderr
    assert given == [5]
    assert result.stdout.splitlines()[1].split()[-1] == "-"


def test_a_peer_for_which_memory_may_not_suffice_is_not_loaded(project, run, monkeypatch):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(peers, "host_memory", lambda: HostMemory(1 << 30, 1 << 6, None))

    result = run(f"bench deploy.prototxt --devices numpy --batches 3 --peers {QUICK}")

    assert result.exit_code == 1
    assert "onnxruntime may take" in result.stderr
    assert result.stdout.splitlines()[1].split()[-1] == "-"


def test_without_peers_it_says_what_to_install(project, run, monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)

    failed_with(run("bench deploy.prototxt --peers"), 3, ErrorCode.UNAVAILABLE, field="peers")


def test_the_deploy_nets_of_a_folder_of_models(project, run):
    for name in ("one", "two"):
        folder = Path("models") / name
        folder.mkdir(parents=True)
        for file in ("deploy.prototxt", "net.prototxt", "solver.prototxt"):
            (folder / file).write_text(Path(file).read_text())
        (folder / "any.caffemodel").touch()
    (Path("models") / "deploy.prototxt").write_text("no weights beside it")

    result = run(f"bench models --devices numpy --batches 1 {QUICK}")

    rows = result.stdout.partition("\n\n")[0].splitlines()[1:]
    assert result.exit_code == 0, result.output
    assert [row.split()[0] for row in rows] == ["one/deploy", "two/deploy"]


def test_a_net_with_untrained_statistics_has_finite_values(tmp_path):
    layers = ['layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [1, 8] } } }']
    layers += [f'layer {{ name: "{n}" type: "BatchNorm" bottom: "x" top: "x" }}' for n in range(9)]
    path = tmp_path / "norms.prototxt"
    path.write_text("\n".join(layers))
    net = Net(path, "TEST", device="numpy")
    net.set_input("x", np.ones((1, 8), np.float32))

    load_values(net, path)

    net.forward()
    assert np.isclose(net.blobs["x"].data, 1, atol=1e-3).all()


def test_weights_beside_a_prototxt_are_measured(project):
    trained = Net("deploy.prototxt", "TEST", device="numpy", seed=7)
    trained.save("deploy.caffemodel")
    net = Net("deploy.prototxt", "TEST", device="numpy", seed=1)

    load_values(net, Path("deploy.prototxt"))

    assert np.array_equal(net.params["ip"][0].data, trained.params["ip"][0].data)


@pytest.mark.parametrize(("times", "code"), [(1e6, 0), (1e-6, 1)])
def test_what_is_slower_than_a_saved_run_ends_with_1(project, run, times, code):
    command = f"bench deploy.prototxt --devices numpy --batches 3 {QUICK}"
    run(f"{command} --save a.json")
    found = json.loads(Path("a.json").read_text())
    found["benchmarks"][0]["stats"]["median"] *= times
    Path("a.json").write_text(json.dumps(found))

    result = run(f"{command} --baseline a.json --html page.html")

    assert result.exit_code == code
    assert ("slower than in a.json: deploy[numpy-3-test]" in result.stdout) == bool(code)
    said = "times as long" if code else "No case is slower"
    assert said in Path("page.html").read_text(encoding="utf-8")


def test_a_scalar_before_the_other_inputs_has_no_batch(project, run):
    scalar = 'layer { name: "s" type: "Input" top: "s" input_param { shape {} } }'
    Path("scalar.prototxt").write_text(scalar + Path("deploy.prototxt").read_text())

    param = with_batch(Path("scalar.prototxt"), "TEST", 7)

    shapes = [list(layer.input_param.shape[0].dim) for layer in param.layer[:2]]
    assert shapes == [[], [7, 1, 3, 3]]


def test_nets_of_equal_names_are_compared_each_with_itself(project, run):
    nets = [Path(folder, "v1", "net.prototxt") for folder in ("a", "b")]
    for path in nets:
        path.parent.mkdir(parents=True)
        path.write_text(Path("deploy.prototxt").read_text())
    command = f"bench {nets[0]} {nets[1]} --devices numpy --batches 3 {QUICK}"
    run(f"{command} --save a.json")
    found = json.loads(Path("a.json").read_text())
    for entry, times in zip(found["benchmarks"], (1e-6, 1e6), strict=True):
        entry["stats"]["median"] *= times
    Path("a.json").write_text(json.dumps(found))

    result = run(f"{command} --baseline a.json --layers --html page.html")

    assert result.exit_code == 1
    assert re.findall("slower than in a.json: (.*) takes", result.stdout) == [
        "a/v1/net[numpy-3-test]"
    ]
    assert "b/v1/net[numpy-3-test], slowest layers" in result.stdout
    assert "Layers of b/v1/net[" in Path("page.html").read_text(encoding="utf-8")


def test_a_case_that_a_saved_run_lacks_is_named(project, run):
    command = f"bench deploy.prototxt --devices numpy {QUICK}"
    run(f"{command} --batches 3 --save a.json")

    result = run(f"{command} --batches 3,4 --baseline a.json --tolerance 1e9")

    assert "deploy[numpy-4-test]: not in a.json, so not compared" in result.stderr
    assert "deploy[numpy-3-test]: not in" not in result.stderr


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"benchmarks": [{"name": "a", "stats": {"median": 0}}]}', "[" * 100_000],
)
def test_what_is_no_saved_run_is_bad_data(project, run, text):
    Path("a.json").write_text(text)

    result = run(f"bench deploy.prototxt --devices numpy --batches 1 {QUICK} --baseline a.json")

    assert result.exit_code == 3
    assert "a.json" in result.stderr


def test_a_case_that_cannot_run_does_not_end_the_others(project, run):
    result = run(f"bench deploy.prototxt --devices numpy --batches 2 --phases test,train {QUICK}")

    assert result.exit_code == 1
    assert "deploy[numpy-2-train]: NetError: " in result.stderr
    assert re.search(r"^deploy +TEST +numpy +2 +\d", result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("flags", "code"),
    [("--batches 0", 2), ("--batches two", 2), ("--phases sleep", 2), ("--devices abacus", 4)],
)
def test_wrong_usage(project, run, flags, code):
    assert run(f"bench deploy.prototxt {flags}").exit_code == code


def test_reading_data_is_measured_alone_and_with_the_net(project, run):
    result = run(
        f"bench net.prototxt deploy.prototxt --devices numpy --batches 5 {QUICK} --phases test "
        "--input --save a.json"
    )

    with_data, without = (
        entry["extra_info"] for entry in json.loads(Path("a.json").read_text())["benchmarks"]
    )
    head, *rows = result.stdout.splitlines()
    assert result.exit_code == 0, result.output
    assert head.split()[-3:] == ["read/s", "reading,", "images/s"]
    assert rows[1].split()[-2:] == ["-", "-"]
    assert with_data["images_read_per_second"] > 0
    assert with_data["images_per_second_reading"] > 0
    assert without["images_read_per_second"] == 0


def test_files_of_a_net_are_found_beside_it(project, run, monkeypatch):
    monkeypatch.chdir("/")
    flags = f"--devices numpy --batches 5 {QUICK} --phases test,train --input"

    result = run(f"bench {project}/net.prototxt {flags}")

    assert result.exit_code == 0, result.output


def test_the_layers_that_take_longest_are_shown(project, run):
    result = run(f"bench deploy.prototxt --devices numpy --batches 2 {QUICK} --layers")

    assert "deploy[numpy-2-test]" in result.stdout
    assert re.search(r"^ip +\d", result.stdout, re.MULTILINE)


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_chart_is_drawn(project, run, kind):
    pytest.importorskip("matplotlib")

    result = run(
        f"bench deploy.prototxt --devices numpy --batches 1,2 {QUICK} "
        f"--chart a.{kind} --html a.html"
    )

    assert result.exit_code == 0, result.output
    assert Path(f"a.{kind}").read_bytes().startswith({"svg": b"<?xml", "png": b"\x89PNG"}[kind])
    page = Path("a.html").read_text(encoding="utf-8")
    assert "images per second" in page
    assert "<td>deploy</td><td>TEST</td><td>numpy</td>" in page


def test_a_chart_of_an_unknown_kind_is_refused_before_the_measurement(project, run):
    pytest.importorskip("matplotlib")

    result = run(f"bench deploy.prototxt --devices numpy --batches 1 {QUICK} --chart a.foo")

    assert result.exit_code == 2
    assert "a.foo" in result.stderr
    assert "preparing" not in result.stderr


# -- ``demitasse largest-batch`` --


@pytest.fixture
def path(tmp_path):
    written = tmp_path / "wide.prototxt"
    written.write_text(NET)
    return written


def test_the_verb(path, run):
    flags = f"{path} --device numpy --phase test --limit 8MiB --no-confirm"

    shown = run(f"largest-batch {flags}")
    told = json.loads(run(f"largest-batch {flags} --json").stdout)

    assert shown.exit_code == 0
    assert f"a batch of {told['batch']:,} fits in 8.0 MiB on numpy, phase TEST" in shown.stdout
    assert "it was not run" in shown.stdout
    assert told["use"]["total"] == sum(v for k, v in told["use"].items() if k != "total")


def test_the_verb_ends_with_4_where_nothing_fits(path, run):

    shown = run(f"largest-batch {path} --device numpy --limit 64KiB --no-confirm")

    failed_with(shown, 4, ErrorCode.OUT_OF_MEMORY)


def test_a_limit_that_is_no_size_is_wrong_usage(path, run):
    shown = run(f"largest-batch {path} --device numpy --limit much")

    assert shown.exit_code == 2
    assert "'--limit': got 'much'" in shown.stderr


def nvml(read):
    """Return what stands for pynvml; ``read`` reads the counter of millijoules."""
    names = {"Init": lambda: None, "DeviceGetHandleByPciBusId": str}
    names["DeviceGetTotalEnergyConsumption"] = lambda gpu: read()
    return SimpleNamespace(**{f"nvml{name}": function for name, function in names.items()})


def test_images_per_watt_where_nvml_tells(project, run, stand_in, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(count(2000, 2000).__next__))

    result = run(f"bench deploy.prototxt --devices cuda:0 numpy --batches 3 {QUICK} --save a.json")

    head, gpu, host = result.stdout.partition("\n\n")[0].splitlines()
    entries = json.loads(Path("a.json").read_text())["benchmarks"]
    assert result.exit_code == 0, result.output
    assert head.endswith("images/s/W")
    assert (gpu.split()[-1], host.split()[-1]) == ("1.5", "-")  # 3 images for 2 J
    assert [one["extra_info"]["images_per_joule"] for one in entries] == [1.5, 0]
    assert "NVML" in result.stdout


@pytest.mark.parametrize("library", [None, nvml(iter(()).__next__)], ids=["missing", "refused"])
def test_without_nvml_there_is_no_column(project, run, stand_in, monkeypatch, library):
    monkeypatch.setitem(sys.modules, "pynvml", library)

    result = run(f"bench deploy.prototxt --devices cuda:0 --batches 3 {QUICK}")

    assert result.exit_code == 0, result.output
    assert "/W" not in result.stdout
