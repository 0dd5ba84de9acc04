"""Signals in the middle of a step: nothing is half done, and what is written goes on exactly."""

import os
import signal

import pytest
from needs import needs

from demitasse import Solver
from demitasse.cli.signals import Signals
from demitasse.training import loop

pytestmark = needs("signals")

ITERATION = 3
TESTED = "iter_size: 2 test_iter: 2 test_interval: 3 snapshot_after_train: true"


@pytest.fixture
def made(fields, tmp_path, backend):
    def make():
        param = fields(TESTED, snapshot_prefix=str(tmp_path / "s"))
        return Solver(param, device=backend)

    return make


def hook(solver, place, act, monkeypatch):
    """Have ``act`` called at a place of a step."""
    if place in {"on_start", "on_gradients_ready"}:
        getattr(solver, place).append(act)
    elif place == "update":
        rate = loop.learning_rate
        monkeypatch.setattr(loop, "learning_rate", lambda *args: (act(), rate(*args))[1])
    elif place == "test":
        solver.test_nets[0].after_forward.append(lambda index: index == 1 and act())
    else:
        getattr(solver.net, place).append(lambda index: index == 1 and act())


def at_iteration(solver, number):
    """Return a function that raises a signal once, in one iteration."""
    raised = []

    def act():
        if solver.iter == ITERATION and not raised:
            raised.append(number)
            signal.raise_signal(number)

    return act


def run(solver):
    with Signals(solver.request, "stop", "snapshot", "stop"):
        solver.solve()


def weights(solver):
    return [blob.cpu_data().tobytes() for blob in solver.net.learnable_params]


def states(folder):
    return sorted(int(p.name.split("_")[-1].split(".")[0]) for p in folder.glob("*.solverstate"))


PLACES = [
    "on_start", "before_forward", "after_forward", "before_backward", "after_backward",
    "on_gradients_ready", "update", "test",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_stop_in_the_middle_of_a_step_loses_nothing(made, tmp_path, place, monkeypatch):
    whole = made()
    whole.solve()
    wanted = weights(whole)
    for file in tmp_path.iterdir():
        file.unlink()
    stopped = made()
    hook(stopped, place, at_iteration(stopped, signal.SIGINT), monkeypatch)

    run(stopped)
    [done] = states(tmp_path)
    resumed = made()
    resumed.solve(tmp_path / f"s_iter_{done}.solverstate")

    assert stopped.stopped
    assert done == (ITERATION if place == "test" else ITERATION + 1)
    assert weights(resumed) == wanted


@pytest.mark.parametrize("place", PLACES)
def test_a_snapshot_in_the_middle_of_a_step_is_of_whole_iterations(
    made, tmp_path, place, monkeypatch
):
    solver = made()
    hook(solver, place, at_iteration(solver, signal.SIGHUP), monkeypatch)

    run(solver)
    first, last = states(tmp_path)
    resumed = made()
    resumed.solve(tmp_path / f"s_iter_{first}.solverstate")

    assert not solver.stopped
    assert (first, last) == (ITERATION if place == "test" else ITERATION + 1, 8)
    assert weights(resumed) == weights(solver)


def test_a_stop_while_a_snapshot_is_written_waits_for_it(made, tmp_path, monkeypatch):
    solver = made()
    solver.param.snapshot = 3
    sync, raised = os.fsync, []

    def interrupted(handle):
        if not raised:
            raised.append(True)
            signal.raise_signal(signal.SIGINT)
        sync(handle)

    monkeypatch.setattr(os, "fsync", interrupted)
    with Signals(solver.request, "stop", "snapshot", "stop"):
        solver.step(8)

    assert (solver.stopped, solver.iter) == (True, 3)  # before the test that is due there
    assert states(tmp_path) == [3]


def test_leaving_at_once_leaves_the_old_snapshot_whole(made, tmp_path, monkeypatch):
    solver = made()
    solver.step(2)
    solver.snapshot()
    old = {file: file.read_bytes() for file in tmp_path.iterdir()}
    solver.net.params["ip1"][0].data[...] = 0
    sync = os.fsync

    def interrupted(handle):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        sync(handle)

    monkeypatch.setattr(os, "fsync", interrupted)
    with Signals(solver.request, "stop", "snapshot", "stop"), pytest.raises(KeyboardInterrupt):
        solver.snapshot()

    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == old
