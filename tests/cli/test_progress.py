"""The progress line is there on a terminal, and only there."""

import os
import re

import pytest

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
