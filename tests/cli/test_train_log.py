"""Log lines of a run are those that Caffe's parse_log.py and extract_seconds.py look for."""

import json
import re
from datetime import datetime

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


def test_the_log_is_kept_where_glog_is_told_to(project, run, monkeypatch):
    monkeypatch.setenv("GLOG_log_dir", "logs")

    result = run("train -solver solver.prototxt")

    newest = project / "logs" / "caffe.INFO"
    assert newest.read_text() == result.stderr
    assert re.fullmatch(r"caffe\..+\..+\.log\.INFO\.\d{8}-\d{6}\.\d+", newest.readlink().name)


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

    assert "GLOG_log_dir=file: File exists" in result.stderr
    assert "Optimization Done" in result.stderr


def test_the_log_can_be_json(project, run):
    result = run("train -solver solver.prototxt --log_format json")

    entries = [json.loads(line) for line in result.stderr.splitlines()]
    losses = [e["metrics"]["loss"] for e in entries if "loss" in e.get("metrics", {})]
    assert len(losses) == 5  # of iterations 0, 5, 10, 15, and the one after the last update


def test_a_quiet_run_says_nothing(project, run):
    assert run("train -solver solver.prototxt --log_level error").stderr == ""
