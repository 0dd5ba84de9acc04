"""Signals in the middle of training: nothing is lost, and the exit code tells."""

import os
import signal
import threading
from pathlib import Path

import pytest

from demitasse.cli.signals import Signals
from demitasse.solvers import read_state

LONG = ("max_iter: 20 display: 5", "max_iter: 1000000 display: 20 test_initialization: false")

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")


@pytest.fixture
def long_run(project, start):
    """A training run that does not end by itself, after its first displayed iterations."""
    text = Path("solver.prototxt").read_text().replace(*LONG).replace("interval: 10", "interval: 0")
    Path("solver.prototxt").write_text(text.replace("test_iter: 2", ""))

    def begin(flags: str = ""):
        process = start(f"train -solver solver.prototxt {flags}")
        read_until(process, "Iteration 20")
        return process

    return begin


def read_until(process, words: str) -> str:
    """Read what a process logs until a line has ``words``."""
    read = ""
    for line in process.stderr:
        read += line
        if words in line:
            return read
    raise AssertionError(f"{words!r} was not logged:\n{read}")


@posix
def test_ctrl_c_leaves_a_snapshot_to_go_on_from(long_run, run):
    process = long_run()

    process.send_signal(signal.SIGINT)
    log = process.stderr.read()

    assert process.wait() == 130
    [state] = Path().glob("run_iter_*.solverstate")
    done = read_state(state).iter
    assert done >= 20
    assert Path(f"run_iter_{done}.caffemodel").exists()
    assert "Optimization stopped early." in log
    assert f"demitasse train --solver solver.prototxt --snapshot {state}" in log
    assert "Traceback" not in log


@posix
def test_a_hang_up_writes_a_snapshot_and_training_goes_on(long_run):
    process = long_run()

    process.send_signal(signal.SIGHUP)
    read_until(process, "Snapshotting solver state")
    read_until(process, "Iteration")
    read_until(process, "Iteration")
    process.send_signal(signal.SIGINT)
    process.stderr.read()

    assert process.wait() == 130
    first, last = sorted(read_state(path).iter for path in Path().glob("run_iter_*.solverstate"))
    assert first < last


@posix
def test_effects_can_be_exchanged(long_run):
    process = long_run("-sigint_effect snapshot -sighup_effect=stop")

    process.send_signal(signal.SIGINT)
    read_until(process, "Snapshotting solver state")
    read_until(process, "Iteration")
    process.send_signal(signal.SIGHUP)
    process.stderr.read()

    assert process.wait() == 130


def test_a_signal_of_no_effect_is_ignored():
    asked = []

    with Signals(asked.append, "none", "none"):
        signal.raise_signal(signal.SIGINT)

    assert asked == []


def test_a_second_stop_leaves_at_once():
    asked = []

    with Signals(asked.append, "stop", "snapshot"):
        signal.raise_signal(signal.SIGINT)
        assert asked == ["stop"]

        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_are_given_back():
    before = signal.getsignal(signal.SIGINT)

    with Signals(print, "stop", "snapshot"):
        assert signal.getsignal(signal.SIGINT) != before

    assert signal.getsignal(signal.SIGINT) == before


def test_in_another_thread_signals_are_left_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with Signals(print, "stop", "snapshot"):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [before]


def test_ctrl_c_outside_of_training_is_an_exit_code(project, run, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("demitasse.net.Net.forward", interrupt)

    result = run("time -model deploy.prototxt")

    assert result.exit_code == 130
    assert "error: interrupted" in result.stderr
