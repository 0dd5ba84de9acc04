"""``parse_log``, ``extract_seconds`` and ``plot_training_log``: logs of Caffe and of ours."""

import csv
import os
from pathlib import Path

import pytest
from cli_errors import failed_with
from needs import needs

from demitasse.errors import ErrorCode

LOG = """\
I1231 23:59:50.000000  1 caffe.cpp:1] before
I1231 23:59:58.500000  1 solver.cpp:2] Solving LeNet
I1231 23:59:58.600000  1 solver.cpp:3] Iteration 0, Testing net (#0)
I1231 23:59:58.700000  1 solver.cpp:4]     Test net output #0: accuracy = 0.1
I1231 23:59:58.700000  1 solver.cpp:4]     Test net output #1: loss = 2.5 (* 1 = 2.5 loss)
I1231 23:59:59.000000  1 solver.cpp:5] Iteration 0 (0 iter/s, 1s/100 iters), loss = 2.4
I1231 23:59:59.000000  1 solver.cpp:6]     Train net output #0: loss = 2.375 (* 1 = 2.375 loss)
I1231 23:59:59.100000  1 sgd_solver.cpp:7] Iteration 0, lr = 0.01
no line of glog
I0101 00:00:00.500000  1 solver.cpp:5] Iteration 100, loss = 1e-05
I0101 00:00:00.500000  1 solver.cpp:6]     Train net output #0: loss = nan (* 1 = nan loss)
I0101 00:00:00.600000  1 sgd_solver.cpp:7] Iteration 100, lr = 0.005
I0101 00:00:01.000000  1 solver.cpp:3] Iteration 200, Testing net (#0)
I0101 00:00:01.100000  1 solver.cpp:4]     Test net output #0: accuracy = 0.9
I0101 00:00:01.100000  1 solver.cpp:4]     Test net output #1: loss = 0.25 (* 1 = 0.25 loss)
"""


@pytest.fixture(autouse=True)
def log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.log").write_text(LOG)


def table(path, **options):
    with Path(path).open(newline="") as file:
        return list(csv.reader(file, **options))


def test_outputs_become_tables(run):
    result = run("parse_log run.log . --verbose")

    assert result.stdout == "Wrote run.log.train\nWrote run.log.test\n"
    assert table("run.log.train") == [
        ["NumIters", "Seconds", "LearningRate", "loss"],
        ["0.0", "0.5", "0.01", "2.375"],
        ["100.0", "2.0", "0.01", "nan"],
    ]
    assert table("run.log.test") == [
        ["NumIters", "Seconds", "LearningRate", "accuracy", "loss"],
        ["0.0", "0.2", "0.005", "0.1", "2.5"],
        ["200.0", "2.6", "0.005", "0.9", "0.25"],
    ]


def test_an_output_with_several_values_has_one_row_with_the_last(run):
    """As in Caffe's parser, e.g. for the accuracies of all classes."""
    head = "I1231 23:59:58.700000  1 solver.cpp:4]     Test net output"
    loss = "Test net output #1: loss"
    each = f"Test net output #1: each = 0.5\n{head} #2: each = 0.75\n{head} #3: loss"
    Path("run.log").write_text(LOG.replace(loss, each))
    run("parse_log run.log .")

    assert table("run.log.test") == [
        ["NumIters", "Seconds", "LearningRate", "accuracy", "each", "loss"],
        ["0.0", "0.2", "0.005", "0.1", "0.75", "2.5"],
        ["200.0", "2.6", "0.005", "0.9", "0.75", "0.25"],
    ]


def test_every_test_net_has_a_row_and_a_rate(run):
    again = LOG.splitlines(keepends=True)
    Path("run.log").write_text("".join(again[:5] + again[2:]))
    run("parse_log run.log .")

    rows = [row[2:] for row in table("run.log.test")[1:]]
    assert rows == [["0.005", "0.1", "2.5"], ["0.005", "0.1", "2.5"], ["0.005", "0.9", "0.25"]]


def test_another_delimiter(run):
    assert run("parse_log run.log . --delimiter=;").exit_code == 0

    assert table("run.log.train", delimiter=";")[1] == ["0.0", "0.5", "0.01", "2.375"]
    assert run("parse_log run.log . --delimiter=ab").exit_code == 2


def test_seconds_of_iterations_count_over_the_turn_of_the_year(run):
    assert run("extract_seconds run.log out").exit_code == 0

    seconds = [float(line) for line in Path("out").read_text().split()]
    assert seconds == [0.1, 0.5, 0.6, 2.0, 2.1, 2.5]


@pytest.mark.parametrize("verb", ["parse_log run.log .", "extract_seconds run.log out"])
def test_a_log_without_a_run_is_bad_data(run, verb):
    Path("run.log").write_text("nothing of the kind\n")

    result = run(verb)

    assert result.exit_code == 3
    failed_with(result, 3, ErrorCode.MISSING, mentions="Solving")


@pytest.mark.parametrize(
    "line",
    [
        "I1231 23:59:59.000000  1 a] Iteration 1, loss = 1.2.3",
        f"I1231 23:59:59.000000  1 a] Iteration {'1' * 5000}, lr = 1",
        f"I1231 {'9' * 5000}:59:59.000000  1 a] Iteration 1",
        "I1231 99999999999999999999:59:59.000000  1 a] Iteration 1",
        "I1331 23:59:59.000000  1 a] Iteration 1",
    ],
)
def test_numbers_that_are_none_do_no_harm(run, line):
    Path("run.log").write_text(f"{LOG}{line}\n")

    assert run("parse_log run.log .").exit_code == 0
    assert run("extract_seconds run.log out").exit_code == 0


def test_a_long_line_is_gone_through_once(run):
    long = "Iteration 1 " * 50_000  # every one of which a loss might follow
    Path("run.log").write_text(f"{LOG}I0101 00:00:02.000000  1 a] {long}, loss = 7\n")

    assert run("plot_training_log 6 out.svg run.log").exit_code == 0


def test_a_log_of_very_many_outputs_is_bad_data(run):
    lines = [
        f"I0101 00:00:02.000000  1 a] Iteration {i}\n"
        f"I0101 00:00:02.000000  1 a] Test net output #0: o{i} = 1\n"
        for i in range(1001)
    ]
    Path("run.log").write_text(LOG + "".join(lines))

    result = run("parse_log run.log .")

    assert result.exit_code == 3
    failed_with(result, 3, ErrorCode.LIMIT, limit=1000)


@needs("named pipes")
def test_a_pipe_is_no_log(run):
    os.mkfifo("pipe")

    result = run("parse_log pipe .")

    assert result.exit_code == 3
    failed_with(result, 3, ErrorCode.UNREADABLE)


def test_a_log_of_ours_is_read(project, run):
    Path("ours.log").write_text(run("train -solver solver.prototxt").stderr)

    assert run("parse_log ours.log .").exit_code == 0

    assert [row[0] for row in table("ours.log.test")] == ["NumIters", "0.0", "10.0", "20.0"]


@pytest.mark.parametrize("kind", range(8))
def test_every_kind_of_chart(run, kind):
    pytest.importorskip("matplotlib")

    result = run(f"plot_training_log {kind} chart.png run.log run.log")

    assert result.exit_code == 0
    assert Path("chart.png").read_bytes()[:4] == b"\x89PNG"


def test_a_chart_without_matplotlib_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)

    result = run("plot_training_log 0 chart.png run.log")

    assert result.exit_code == 3
    assert "'demitasse[plot]'" in result.stderr


def test_a_chart_that_there_is_not(run):
    assert run("plot_training_log 8 chart.png run.log").exit_code == 2


def test_json_lines_are_pointed_to_their_command(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.jsonl").write_text('{"kind": "scalars", "iteration": 1, "values": {"loss": 1}}\n')

    shown = run("parse_log run.jsonl .")

    assert shown.exit_code == 3
    assert "demitasse report" in shown.stderr
