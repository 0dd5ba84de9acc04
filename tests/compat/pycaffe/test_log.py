"""Nets and solvers made by scripts write Caffe's log to standard error."""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import demitasse.compat.pycaffe as caffe
from demitasse.core.log import start_logging

ROOT = Path(__file__).resolve().parents[3]
PREFIX = re.compile(r"^[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \S+:\d+\] ")

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(autouse=True)
def _environment_says_nothing(monkeypatch):
    for name in ("GLOG_minloglevel", "GLOG_logtostderr", "DEMITASSE_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)


def test_training_is_told_in_lines_that_parsers_of_caffes_log_read(folder, capsys):
    file = folder / "solver.prototxt"
    file.write_text(file.read_text() + "display: 2")

    solver = caffe.SGDSolver("solver.prototxt")
    solver.step(1)
    solver.solve()

    lines = capsys.readouterr().err.splitlines()
    assert all(PREFIX.match(line) for line in lines)
    text = "\n".join(lines)
    assert re.findall(r"Iteration (\d+), lr = ([\d.]+)", text) == [("0", "0.1"), ("2", "0.1")]
    assert len(re.findall(r"Train net output #0: loss = ", text)) == 2
    assert [line.split("] ")[1] for line in lines if "Solving" in line] == [
        "Solving classifier"
    ] * 2
    assert "Optimization Done." in text


def test_the_log_begins_with_the_first_net_and_once(capsys):
    logging.getLogger("demitasse").info("too early")
    caffe.Net("net.prototxt", caffe.TEST)
    caffe.SGDSolver("solver.prototxt")
    caffe.log("a line of the program's own")

    said = capsys.readouterr().err

    assert "too early" not in said
    assert said.count("Solver scaffolding done.") == 1
    assert re.search(r" test_log\.py:\d+\] a line of the program's own$", said, re.MULTILINE)


def test_a_program_that_shows_the_log_itself_is_left_alone(capsys):
    start_logging("error")

    caffe.SGDSolver("solver.prototxt")

    assert capsys.readouterr().err == ""


def test_a_program_that_shows_all_logs_has_each_line_once(capsys):
    shown = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(shown)
    try:
        caffe.init_log()
        caffe.log("a line of the program's own")
    finally:
        logging.getLogger().removeHandler(shown)

    assert capsys.readouterr().err.count("a line of the program's own") == 1


@pytest.mark.parametrize(
    ("arguments", "environment", "shown"),
    [
        ((), {}, {"info", "warning", "error"}),
        ((0,), {"GLOG_minloglevel": "2"}, {"info", "warning", "error"}),
        ((1,), {}, {"warning", "error"}),
        ((9,), {}, set()),
        ((), {"GLOG_minloglevel": "1"}, {"warning", "error"}),
        ((), {"GLOG_logtostderr": "0"}, {"error"}),
        ((0, True), {"GLOG_logtostderr": "0"}, {"info", "warning", "error"}),
        ((0, False), {}, {"error"}),
    ],
)
def test_what_is_shown_is_chosen(arguments, environment, shown, monkeypatch, capsys):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    caffe.init_log(*arguments)

    logger = logging.getLogger("demitasse.anything")
    for level in ("info", "warning", "error"):
        getattr(logger, level)("%s!", level)

    assert set(re.findall(r"(\w+)!", capsys.readouterr().err)) == shown


def test_the_engine_by_itself_is_quiet(folder):
    code = "import demitasse; demitasse.Net('net.prototxt', 'TEST')"

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize(
    ("at_import", "later", "shown"), [("2", None, False), ("2", "0", False), ("0", "2", True)]
)
def test_the_level_at_the_import_counts(at_import, later, shown, folder):
    name = "GLOG_minloglevel"
    change = f"del os.environ['{name}']" if later is None else f"os.environ['{name}'] = '{later}'"
    code = (
        f"import os; os.environ['{name}'] = '{at_import}'; import caffe; {change}; "
        "caffe.Net('net.prototxt', caffe.TEST); caffe.log('a line')"
    )
    (folder / "script.py").write_text(code)

    done = subprocess.run(
        [sys.executable, "-m", "demitasse.pycaffe", "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ("a line" in done.stderr) == shown
