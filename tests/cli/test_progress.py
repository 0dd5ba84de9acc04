"""The progress line is there on a terminal, and only there."""

import os
import re

import pytest

from demitasse.core.text import seconds_text

pty = pytest.importorskip("pty", reason="terminals are faked by POSIX's pty")


def read_all(descriptor: int) -> str:
    read = b""
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # the other end is closed
            return read.decode()
        if not part:
            return read.decode()
        read += part


def test_a_terminal_shows_progress_below_the_log(project, start):
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "160"}
    process = start("train -solver solver.prototxt", stderr=theirs, env=environment)
    os.close(theirs)

    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read_all(ours))
    os.close(ours)

    assert process.wait() == 0
    assert re.search(r"\d+/20 .* loss .* lr .* left", shown)
    assert re.search(r"/20 .* test net #0: \d of 2 batches", shown)
    assert "Iteration 15, lr = 0.025" in shown


def test_a_file_gets_log_lines_alone(project, start):
    environment = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm"}
    process = start("train -solver solver.prototxt", env=environment)

    out, log = process.communicate()

    assert process.returncode == 0
    assert out == ""
    assert not re.search(r"[\r\x1b]|left", log)


def test_the_log_has_the_time_remaining_in_lines_of_its_own(project, run):
    log = run("train -solver solver.prototxt").stderr

    lines = [line for line in log.splitlines() if "Time remaining" in line]
    assert [re.sub(r".*remaining: [\d a-z]+", "", line) for line in lines] == [
        "(6 of 20 done)", "(11 of 20 done)", "(16 of 20 done)",
    ]  # fmt: skip
    assert not any(re.search("Iteration|loss|lr =|output #", line) for line in lines)


def test_long_commands_log_the_time_remaining(project, run, monkeypatch):
    monkeypatch.setattr("demitasse.cli.progress.LOG_INTERVAL", 0.0)
    run("train -solver solver.prototxt")
    commands = [
        "test -model net.prototxt -weights run_iter_20.caffemodel -iterations 3",
        "compute_image_mean train_lmdb",
        "extract_features run_iter_20.caffemodel net.prototxt ip features 3 lmdb",
    ]

    assert all("Time remaining: " in run(command).stderr for command in commands)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.6, "1 min 0 s"), (61, "1 min 1 s"), (7200, "2 h"), (90061, "1 d 1 h")],
)
def test_times_have_two_units(seconds, text):
    assert seconds_text(seconds) == text
