"""Signals in the middle of training: nothing is lost, and the exit code tells."""

import shlex
import signal
import threading
from pathlib import Path

import pytest
from needs import needs

from demitasse.cli.commands.train import _resume_command, train_command
from demitasse.cli.signals import Signals
from demitasse.training import read_state

LONG = ("max_iter: 20 display: 5", "max_iter: 1000000 display: 20 test_initialization: false")

posix = needs("signals")


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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_leaves_a_snapshot_to_go_on_from(long_run, number):
    process = long_run()

    process.send_signal(number)
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
def test_a_run_that_was_terminated_goes_on_as_if_it_had_not_been(long_run, run):
    process = long_run()

    process.send_signal(signal.SIGTERM)
    process.communicate()
    [state] = Path().glob("run_iter_*.solverstate")
    end = read_state(state).iter + 20
    solver = Path("solver.prototxt").read_text().replace("max_iter: 1000000", f"max_iter: {end}")
    Path("solver.prototxt").write_text(solver)
    Path("whole.prototxt").write_text(solver.replace('"run"', '"whole"'))

    assert run(f"train --solver solver.prototxt --snapshot={state}").exit_code == 0
    assert run("train --solver whole.prototxt").exit_code == 0
    resumed, whole = (Path(f"{name}_iter_{end}.caffemodel") for name in ("run", "whole"))
    assert resumed.read_bytes() == whole.read_bytes()


@posix
def test_sigterm_before_training_ends_the_process(project, start):
    Path("terminating.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()"
    )
    with Path("net.prototxt").open("a") as net:
        net.write('layer { name: "p" type: "Python" top: "p" '
                  'python_param { module: "terminating" layer: "Any" } }')  # fmt: skip

    process = start("train --solver solver.prototxt")
    log = process.communicate()[1]

    assert process.returncode == -signal.SIGTERM, log
    assert not list(Path().glob("*.solverstate"))


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
    process = long_run("-sigint_effect snapshot -sighup_effect=stop --sigterm-effect snapshot")

    for number in (signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
        read_until(process, "Snapshotting solver state")
        read_until(process, "Iteration")
    process.send_signal(signal.SIGHUP)
    process.stderr.read()

    assert process.wait() == 130


def test_a_signal_of_no_effect_is_ignored():
    asked = []

    with Signals(asked.append, "none", "none", "none"):
        signal.raise_signal(signal.SIGINT)

    assert asked == []


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_stop_leaves_at_once(first, second):
    asked = []

    with Signals(asked.append, "stop", "snapshot", "stop"):
        signal.raise_signal(first)
        assert asked == ["stop"]

        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_handlers_are_given_back(number):
    before = signal.getsignal(number)

    with Signals(print, "stop", "snapshot", "stop"):
        assert signal.getsignal(number) != before

    assert signal.getsignal(number) == before


def test_in_another_thread_signals_are_left_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with Signals(print, "stop", "snapshot", "stop"):
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


@posix
def test_the_command_to_resume_repeats_the_flags(long_run, start):
    flags = (
        "-device=numpy --on_nonfinite raise --keep-last 3 -noforce --logger jsonl:run.jsonl "
        "--min_delta -0.5 --overlap=true --stage a,b -log_dir logs"
    )
    process = long_run(flags)

    process.send_signal(signal.SIGINT)
    log = process.stderr.read()

    assert process.wait() == 130
    [state] = Path().glob("run_iter_*.solverstate")
    [hint] = [line.partition("To resume: ")[2] for line in log.splitlines() if "To resume" in line]
    words = shlex.split(hint.partition(" train ")[2])
    assert words[:4] == ["--solver", "solver.prototxt", "--snapshot", str(state)]
    assert " ".join(words[4:]) == (
        "--on_nonfinite raise --keep_last 3 --min_delta=-0.5 --logger jsonl:run.jsonl --stage a,b "
        "--device numpy --overlap --log_dir logs"
    )
    again = start(f"train {' '.join(words)}")
    read_until(again, "Resuming from")


def test_flags_of_the_start_of_a_run_are_not_repeated():
    words = ["--solver", "my solver.prototxt", "--weights", "run_iter_20.caffemodel", "--gpu=0"]
    context = train_command.make_context("train", [*words, "--shards", "2"])

    line = _resume_command(context, Path("my solver.prototxt"), Path("run_iter_5.solverstate"))

    assert line.endswith(
        "train --solver 'my solver.prototxt' --snapshot run_iter_5.solverstate --gpu 0 --shards 2"
    )
