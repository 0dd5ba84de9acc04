"""``demitasse train``: Caffe's flags, files, and where it runs."""

import json
import re
from datetime import datetime
from pathlib import Path

import pytest
from needs import needs

from demitasse import settings
from demitasse.io.proto import NetParameter, read_binary, read_net_params_binary, write_binary
from demitasse.io.weights.formats import load_weights
from demitasse.training import read_state


def edit(path: str, *pairs: tuple[str, str]) -> None:
    text = Path(path).read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    Path(path).write_text(text)


@pytest.mark.parametrize(
    "flags",
    [
        "-solver solver.prototxt",
        "-solver=solver.prototxt",
        "--solver solver.prototxt",
        "--solver=solver.prototxt",
    ],
)
def test_flags_in_every_spelling(project, run, flags):
    result = run(f"train {flags}")

    assert result.exit_code == 0
    assert Path("run_iter_20.caffemodel").exists()
    assert Path("run_iter_20.solverstate").exists()


def test_underscores_and_hyphens_are_the_same(project, run):
    assert run("train -solver solver.prototxt --sigint-effect=none").exit_code == 0


def test_flags_of_glog_are_taken(project, run):
    flags = "-logtostderr=1 --alsologtostderr -nocolorlogtostderr -v=1 --stderrthreshold=2"

    result = run(f"train {flags} -solver solver.prototxt --minloglevel=1")

    assert result.exit_code == 0
    assert result.stderr == ""


def test_training_learns(trained, run):
    result = run("test -model net.prototxt -weights run_iter_20.caffemodel -iterations 5 --json")

    assert '"accuracy": 1.0' in result.stdout


def test_a_run_goes_on_from_a_snapshot(project, run):
    edit("solver.prototxt", ("display: 5", "display: 5 snapshot: 10"))
    assert run("train -solver solver.prototxt").exit_code == 0
    whole = load_weights("run_iter_20.caffemodel")["ip"]
    Path("run_iter_20.caffemodel").unlink()

    result = run("train -solver solver.prototxt -snapshot run_iter_10.solverstate")

    assert result.exit_code == 0
    assert "Resuming from run_iter_10.solverstate" in result.stderr
    assert "Iteration 5," not in result.stderr
    for once, twice in zip(whole, load_weights("run_iter_20.caffemodel")["ip"], strict=True):
        assert (once == twice).all()


def test_weights_to_begin_with_are_loaded_in_order(trained, run):
    edit("solver.prototxt", ("max_iter: 20", "max_iter: 0"), ('prefix: "run"', 'prefix: "tuned"'))

    result = run("train", "-solver=solver.prototxt", "-weights=run_iter_20.caffemodel")

    assert result.exit_code == 0
    assert "Loaded 1 layers from run_iter_20.caffemodel" in result.stderr
    before, after = (load_weights(f"{n}.caffemodel") for n in ("run_iter_20", "tuned_iter_0"))
    assert (before["ip"][0] == after["ip"][0]).all()


def test_an_empty_name_is_as_none_given(project, run):
    result = run("train", "-solver=solver.prototxt", "-snapshot=", "-weights=")

    assert result.exit_code == 0
    assert "Resuming" not in result.stderr


def test_a_snapshot_and_weights_that_are_empty_go_together(trained, run):
    result = run(
        "train", "-solver=solver.prototxt", "-snapshot=run_iter_20.solverstate", "-weights="
    )

    assert result.exit_code == 0
    assert "Resuming from run_iter_20.solverstate" in result.stderr


def test_a_solver_with_an_empty_name_is_missing(project, run):
    result = run("train", "-solver=")

    assert result.exit_code == 2
    assert "'--solver'" in result.stderr


def test_snapshot_and_weights_together_are_wrong_usage(trained, run):
    result = run("train -solver solver.prototxt -snapshot a.solverstate -weights a.caffemodel")

    assert result.exit_code == 2
    assert "--snapshot" in result.stderr
    assert "--weights" in result.stderr


@pytest.mark.parametrize(
    ("flags", "named"),
    [("--snapshot a.solverstate --force --exact", "--exact"), ("--logger foo:bar", "'foo:bar'"),
     ("--logger jsonl:", "'jsonl:'"), ("--early_stopping loss --min_delta -1", "--min_delta")],
)  # fmt: skip
def test_flags_that_cannot_be_are_wrong_usage(project, run, flags, named):
    result = run(f"train --solver solver.prototxt {flags}")

    assert result.exit_code == 2
    assert named in result.stderr


def test_a_dtype_that_the_device_cannot_train_is_named_as_it_was_given(project, run):
    result = run("train --solver solver.prototxt --dtype float16 --device cpu")

    assert result.exit_code == 3
    assert "dtype float16" in result.stderr


def test_a_folder_that_cannot_be_written_is_no_fault_of_a_file(project, run):
    edit("solver.prototxt", ('snapshot_prefix: "run"', 'snapshot: 5 snapshot_prefix: "no/such"'))

    result = run("train --solver solver.prototxt")

    assert result.exit_code == 1
    assert "snapshot_prefix" in result.stderr


def test_a_state_with_weights_of_another_run_needs_force(trained, run):
    net = read_binary("run_iter_20.caffemodel", NetParameter)
    net.layer[1].blobs[0].data[0] += 1
    write_binary("run_iter_20.caffemodel", net)
    command = "train -solver solver.prototxt -snapshot run_iter_20.solverstate"

    result = run(command)

    assert result.exit_code != 0
    assert "--force" in result.stderr
    assert run(f"{command} --force").exit_code == 0


def test_exact_refuses_another_learning_rate(trained, run):
    edit("solver.prototxt", ("base_lr: 0.05", "base_lr: 0.01"))

    result = run("train -solver solver.prototxt -snapshot run_iter_20.solverstate --exact")

    assert result.exit_code != 0
    assert "base_lr" in result.stderr


def test_force_without_a_snapshot_is_wrong_usage(project, run):
    result = run("train -solver solver.prototxt --force")

    assert result.exit_code == 2
    assert "--snapshot" in result.stderr


def test_level_and_stages_reach_the_training_net(project, run):
    edit(
        "net.prototxt",
        (
            'layer { name: "loss"',
            'layer { name: "twice" type: "Power" bottom: "ip" top: "twice" include '
            '{ phase: TRAIN stage: "a" stage: "b" min_level: 2 } }\n'
            'layer { name: "silence" type: "Silence" bottom: "twice" include '
            '{ phase: TRAIN stage: "a" stage: "b" min_level: 2 } }\n'
            'layer { name: "loss"',
        ),
    )

    layers = []
    for flags in ("", "-stage a,b", "-level 2 -stage a -stage b"):
        assert run(f"train -solver solver.prototxt {flags}").exit_code == 0
        net = read_net_params_binary("run_iter_20.caffemodel")
        layers.append([layer.name for layer in net.layer])

    assert "twice" not in layers[0] + layers[1]
    assert "twice" in layers[2]


def test_old_snapshots_are_deleted_on_request(project, run):
    edit("solver.prototxt", ("display: 5", "display: 5 snapshot: 5"))

    assert run("train -solver solver.prototxt --keep_last 2").exit_code == 0

    states = sorted(path.name for path in project.glob("*.solverstate"))
    assert states == ["run_iter_15.solverstate", "run_iter_20.solverstate"]


def test_the_best_weights_are_kept_on_request(project, run):
    assert run("train -solver solver.prototxt --keep_best accuracy").exit_code == 0

    assert load_weights("run_best.caffemodel")["ip"]


def test_a_run_that_gets_no_better_ends_early(project, run):
    edit("solver.prototxt", ("base_lr: 0.05", "base_lr: 0"), ("interval: 10", "interval: 2"))
    edit("solver.prototxt", ("test_iter: 2", "test_iter: 0"))

    result = run("train -solver solver.prototxt --early_stopping accuracy --patience 3")

    assert result.exit_code == 0
    assert Path("run_iter_6.solverstate").exists()


def test_layers_that_do_not_fit_are_refused_or_left_out(trained, run):
    edit("net.prototxt", ("num_output: 3", "num_output: 4"))
    flags = "-solver solver.prototxt -weights run_iter_20.caffemodel"

    refused, left_out = run(f"train {flags}"), run(f"train {flags} --on_mismatch skip")

    assert (refused.exit_code, left_out.exit_code) == (3, 0)
    assert "'ip'" in refused.stderr
    assert "'ip'" in left_out.stderr


# -- devices -----------------------------------------------------------------------------------


def device_used(result) -> tuple[str, str]:
    return re.search(r"Use (\S+) \((.*)\)\.", result.stderr).groups()


def test_the_dtype_of_the_nets(project, run):
    wide = run("train --solver solver.prototxt --dtype float64")
    narrow = run("train --solver solver.prototxt --device cpu --dtype bfloat16")

    assert wide.exit_code == 0
    assert narrow.exit_code == 3
    assert "cpu" in narrow.stderr


def test_the_device_is_that_of_the_settings(project, run, monkeypatch):
    assert device_used(run("train -solver solver.prototxt")) == ("cpu", "default")

    monkeypatch.setenv("DEMITASSE_DEVICE", "numpy")

    assert device_used(run("train -solver solver.prototxt")) == ("numpy", "DEMITASSE_DEVICE")


def test_an_argument_is_stronger_than_everything(project, run, monkeypatch):
    monkeypatch.setenv("DEMITASSE_DEVICE", "readonly")
    edit("solver.prototxt", ("display: 5", "display: 5 solver_mode: GPU"))

    result = run("train -solver solver.prototxt -device numpy")

    assert device_used(result) == ("numpy", "argument")


def test_the_solver_file_is_asked_before_the_settings_file(project, run):
    Path("demitasse.toml").write_text('device = "readonly"\n')
    edit("solver.prototxt", ("display: 5", "display: 5 solver_mode: CPU"))

    assert device_used(run("train -solver solver.prototxt")) == ("cpu", "solver file")


def test_the_environment_is_stronger_than_the_solver_file(project, run, monkeypatch):
    monkeypatch.setenv("DEMITASSE_DEVICE", "numpy")
    edit("solver.prototxt", ("display: 5", "display: 5 solver_mode: GPU device_id: 7"))

    assert device_used(run("train -solver solver.prototxt")) == ("numpy", "DEMITASSE_DEVICE")


def test_a_gpu_that_the_solver_names_and_that_is_not_there_is_an_error(project, run):
    edit("solver.prototxt", ("display: 5", "display: 5 solver_mode: GPU device_id: 77"))

    result = run("train -solver solver.prototxt")

    assert result.exit_code == 4
    assert "solver_mode of solver.prototxt: " in result.stderr
    assert "'cuda:77'" in result.stderr
    assert "--device cpu" in result.stderr


@pytest.mark.parametrize("flags", ["-gpu 0 -device cpu", "-gpu x"])
def test_a_gpu_that_makes_no_sense_is_wrong_usage(project, run, flags):
    assert run(f"train -solver solver.prototxt {flags}").exit_code == 2


# -- failures ----------------------------------------------------------------------------------


def test_a_damaged_state_is_bad_data(trained, run):
    Path("bad.solverstate").write_bytes(Path("run_iter_20.solverstate").read_bytes()[:50])

    result = run("train -solver solver.prototxt -snapshot bad.solverstate")

    assert result.exit_code == 3
    assert "bad.solverstate" in result.stderr


def test_weights_in_place_of_a_state_are_told_apart(trained, run):
    result = run("train -solver solver.prototxt -snapshot run_iter_20.caffemodel")

    assert result.exit_code == 3
    assert "run_iter_20.solverstate" in result.stderr


def test_a_snapshot_that_cannot_be_written_is_a_failure_while_running(project, run):
    edit("solver.prototxt", ('prefix: "run"', 'prefix: "nowhere/run"'))

    result = run("train -solver solver.prototxt")

    assert result.exit_code == 1
    assert "nowhere" in result.stderr


def test_a_loss_that_is_no_number_can_end_the_run(project, run):
    edit("solver.prototxt", ("base_lr: 0.05", "base_lr: 1e30 weight_decay: 1e20"))

    goes_on = run("train -solver solver.prototxt")
    ends = run("train -solver solver.prototxt -on_nonfinite raise")

    assert (goes_on.exit_code, ends.exit_code) == (0, 1)
    assert "nan at iteration" in ends.stderr


def test_a_missing_database_is_bad_data(project, run):
    edit("net.prototxt", ("train_lmdb", "no_lmdb"))

    result = run("train -solver solver.prototxt")

    assert result.exit_code == 3
    assert "no_lmdb" in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_of_a_run_stays_behind(trained):
    assert settings.where("log_level") == "default"
    assert read_state(trained / "run_iter_20.solverstate").iter == 20


OLD_FLAGS = {
    "-ranks 1": "--expect-processes 1",
    "--reduce=exact": "--allreduce=deterministic",
    "-reduce half": "--allreduce fp16",
    "-deadline 20": "--timeout 20",
    "-log_to jsonl:run.jsonl": "--logger jsonl:run.jsonl",
    "-on_nonfinite stop": "--on_nonfinite raise",
}


@pytest.mark.parametrize("old", OLD_FLAGS)
def test_old_flags_are_taken_and_warned_of(project, run, old):
    result = run(f"train -solver solver.prototxt {old}")

    assert result.exit_code == 0
    new, value = re.split("[ =]", OLD_FLAGS[old])
    flag = re.split("[ =]", old)[0].lstrip("-")
    assert f"use {new}" in result.stderr
    assert (
        value not in {"deterministic", "fp16", "raise"} or f"use {new} {value}\n" in result.stderr
    )
    assert flag == new.lstrip("-") or flag not in run("train --help").stdout.split()


def test_old_flags_of_fault_tolerance_need_processes_too(project, run):
    result = run("train -solver solver.prototxt -survive")

    assert result.exit_code == 3
    assert "--fault-tolerant" in result.stderr


# -- Log lines of a run are those that Caffe's parse_log.py and extract_seconds.py look for --


ITERATION = re.compile(r"Iteration (\d+)")
TRAIN = re.compile(r"Train net output #(\d+): (\S+) = ([\.\deE+-]+)")
TEST = re.compile(r"Test net output #(\d+): (\S+) = ([\.\deE+-]+)")
RATE = re.compile(r"lr = ([-+]?[0-9]*\.?[0-9]+([eE]?[-+]?[0-9]+)?)")


def parsed(log: str) -> tuple[dict, dict, dict]:
    """Outputs of train and test nets and learning rates by iteration, found as parse_log does."""
    train, test, rates, iteration = {}, {}, {}, None
    for line in log.splitlines():
        if found := ITERATION.search(line):
            iteration = int(found[1])
        if iteration is None:
            continue
        if found := RATE.search(line):
            rates[iteration] = float(found[1])
        for pattern, rows in ((TRAIN, train), (TEST, test)):
            if found := pattern.search(line):
                rows.setdefault(iteration, {})[found[2]] = float(found[3])
    return train, test, rates


def when(line: str) -> datetime:
    """The time of a line, found as extract_seconds does: by columns and blanks."""
    day, time = line.split()[:2]
    return datetime.strptime(f"2026{day[1:3]}{day[3:5]} {time}", "%Y%m%d %H:%M:%S.%f")


def test_every_number_is_found(project, run):
    log = run("train -solver solver.prototxt").stderr

    train, test, rates = parsed(log)

    assert list(train) == [0, 5, 10, 15]
    assert list(test) == [0, 10, 20]
    assert rates == {0: 0.05, 5: 0.05, 10: 0.025, 15: 0.025}
    assert all(set(row) == {"loss"} for row in train.values())
    assert all(set(row) == {"accuracy", "loss"} for row in test.values())
    assert train[15]["loss"] < train[0]["loss"]


def test_every_line_has_a_time_and_the_run_a_beginning(project, run):
    lines = run("train -solver solver.prototxt").stderr.splitlines()

    times = [when(line) for line in lines]

    assert times == sorted(times)
    assert all(re.match(r"[IW]\d{4} [\d:.]+ +\d+ \w+\.py:\d+\] ", line) for line in lines)
    assert [line for line in lines if line.endswith("Solving stripes")]


def test_the_log_can_be_kept_in_a_file(project, run):
    result = run("train -solver solver.prototxt -log_dir logs")

    [file] = (project / "logs").iterdir()
    assert file.read_text() == result.stderr


@needs("links")
def test_the_log_is_kept_where_glog_is_told_to(project, run, monkeypatch):
    monkeypatch.setenv("GLOG_log_dir", "logs")

    result = run("train -solver solver.prototxt")

    newest = project / "logs" / "caffe.INFO"
    assert newest.read_text() == result.stderr
    assert re.fullmatch(r"caffe\..+\..+\.log\.INFO\.\d{8}-\d{6}\.\d+", newest.readlink().name)


@needs("links")
def test_the_link_leads_to_the_newest_log(project, run, monkeypatch):
    monkeypatch.setenv("GLOG_log_dir", "logs")
    (project / "logs").mkdir()
    (project / "logs" / "caffe.INFO").symlink_to("an older one")

    result = run("train -solver solver.prototxt")

    assert (project / "logs" / "caffe.INFO").read_text() == result.stderr


def test_verbs_that_caffe_has_not_write_no_log_of_glog(project, run, monkeypatch):
    monkeypatch.setenv("GLOG_log_dir", "logs")

    run("lint net.prototxt")

    assert not (project / "logs").exists()


def test_a_folder_of_glog_that_cannot_be_made_is_told_and_the_run_goes_on(
    project, run, monkeypatch
):
    (project / "file").touch()
    monkeypatch.setenv("GLOG_log_dir", "file")

    result = run("train -solver solver.prototxt")

    assert "no log file in GLOG_log_dir=file: " in result.stderr
    assert "Optimization Done" in result.stderr


def test_the_log_can_be_json(project, run):
    result = run("train -solver solver.prototxt --log_format json")

    entries = [json.loads(line) for line in result.stderr.splitlines()]
    losses = [e["metrics"]["loss"] for e in entries if "loss" in e.get("metrics", {})]
    assert len(losses) == 5  # of iterations 0, 5, 10, 15, and the one after the last update


def test_a_quiet_run_says_nothing(project, run):
    assert run("train -solver solver.prototxt --log_level error").stderr == ""


@pytest.mark.parametrize("level", [2**31, -(2**31) - 1])
def test_a_level_that_no_net_can_have_is_wrong_usage(project, run, level):
    assert run(f"train -solver solver.prototxt --level={level}").exit_code == 2


def test_a_net_whose_state_names_phase_test_is_trained_as_in_caffe(project, run):
    with Path("solver.prototxt").open("a") as file:
        file.write("train_state { phase: TEST }\n")

    assert run("train -solver solver.prototxt").exit_code == 0
    assert Path("run_iter_20.caffemodel").exists()
