"""A resumed run is, bit for bit, the run that never stopped."""

import subprocess
import sys

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Solver
from demitasse.errors import ErrorCode, SnapshotError
from demitasse.io.proto import write_text

KINDS = ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam", "AdamW", "LARS", "LAMB"]
TESTED = "test_iter: 2 test_iter: 1 test_interval: 3 average_loss: 3 display: 1"


def solver_of(fields, text="", device=None, **values):
    if values.get("type") in {"AdaGrad", "RMSProp"}:
        values["momentum"] = 0
    return Solver(fields(text, **values), device=device)


def weights(solver):
    return [blob.cpu_data().copy() for blob in solver.net.learnable_params]


def same(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_solver_resumes_exactly(fields, tmp_path, kind, backend):
    whole = solver_of(fields, type=kind, iter_size=2, device=backend)
    first = solver_of(fields, type=kind, iter_size=2, device=backend)
    second = solver_of(fields, type=kind, iter_size=2, device=backend)
    whole.step(7)

    first.step(4)
    second.restore(first.snapshot(tmp_path / "s")[1])
    second.step(3)

    assert second.iter == whole.iter
    assert same(weights(second), weights(whole))
    assert same(second.history.arrays(), whole.history.arrays())


def test_a_state_in_memory_stays_as_it_is_while_the_run_goes_on(fields, backend):
    solver = solver_of(fields, device=backend)
    solver.step(4)
    state = solver.state_dict()
    solver.step(3)
    expected = [array.copy() for array in solver.history.arrays()]

    solver.load_state_dict(state)
    solver.step(3)

    assert same(solver.history.arrays(), expected)


@pytest.mark.parametrize("other", ["solver", "net", "none"])
def test_a_state_in_memory_of_another_run_is_refused(fields, other):
    solver = solver_of(fields, device="numpy")
    solver.step(2)
    expected = weights(solver)
    param = fields(type="Adam" if other == "solver" else "SGD")
    param.net_param.layer[-3].inner_product_param.num_output += other == "net"
    state = None if other == "none" else Solver(param, device="numpy").state_dict()

    with expect_error(SnapshotError, ErrorCode.INCOMPATIBLE):
        solver.load_state_dict(state)

    assert same(weights(solver), expected)
    solver.step(1)


def test_a_state_in_memory_after_a_restore_is_the_restored_one(fields, tmp_path):
    solver = solver_of(fields, TESTED, device="numpy", snapshot_prefix=str(tmp_path / "s"))
    solver.step(4)
    _, file = solver.snapshot()
    expected = solver.state_dict()
    solver.solve()  # ends with a last test and a last loss, which state_dict() undoes

    solver.restore(file)

    assert solver.state_dict().resume == expected.resume


@pytest.mark.parametrize("fmt", ["BINARYPROTO", "HDF5"])
def test_losses_tests_and_lines_resume_exactly(fields, tmp_path, fmt, backend, lines):
    if fmt == "HDF5":
        pytest.importorskip("h5py")
    text = f"{TESTED} snapshot_format: {fmt}"
    whole = solver_of(fields, text, device=backend)
    first = solver_of(fields, text, device=backend)
    second = solver_of(fields, text, device=backend)

    def said(solver, steps):
        before = len(lines())
        solver.step(steps)
        return [line.split(" (")[0] + line.rpartition(")")[2] for line in lines()[before:]]

    in_one = said(whole, 8)
    in_two = said(first, 5)
    second.restore(first.snapshot(tmp_path / "s")[1])
    in_two += said(second, 3)

    assert in_two == in_one
    assert second.smoothed_loss == whole.smoothed_loss


def test_a_run_without_a_seed_resumes_with_the_one_it_had(fields, tmp_path, backend):
    whole = solver_of(fields, drop="random_seed", device=backend)
    second = solver_of(fields, drop="random_seed", device=backend)
    whole.step(3)
    _, state = whole.snapshot(tmp_path / "s")
    whole.step(3)

    second.restore(state)
    second.step(3)

    assert same(weights(second), weights(whole))


def test_a_solver_can_go_back_to_its_own_snapshot(fields, tmp_path, backend):
    solver = solver_of(fields, device=backend)
    solver.step(2)
    _, state = solver.snapshot(tmp_path / "s")
    solver.step(3)
    once = weights(solver)

    solver.restore(state)
    solver.step(3)

    assert same(weights(solver), once)


def test_a_snapshot_asked_for_during_a_test_repeats_the_whole_test(fields, tmp_path, lines):
    values = {"snapshot_prefix": str(tmp_path / "s")}
    solver, second = (solver_of(fields, TESTED, **values) for _ in range(2))
    net = solver.test_nets[0]
    net.after_forward.append(
        lambda i: i == 0 and solver.iter == 3 and net.layers[0].state()["fills"] % 2
        and solver.request("snapshot")
    )  # fmt: skip
    solver.step(5)
    told = [line for line in lines() if "Test net" in line]

    second.restore(tmp_path / "s_iter_3.solverstate")
    before = len(lines())
    second.step(2)

    assert same(weights(second), weights(solver))
    again = [line for line in lines()[before:] if "Test net" in line]
    assert again == told[-len(again) :]


def test_solve_resumes(fields, tmp_path, backend):
    whole = solver_of(fields, device=backend)
    first = solver_of(fields, device=backend)
    second = solver_of(fields, device=backend)
    whole.solve()
    first.step(5)

    second.solve(first.snapshot(tmp_path / "s")[1])

    assert second.iter == whole.iter == 8
    assert same(weights(second), weights(whole))


ENDLESS = """
import os, sys
from demitasse import Solver
solver = Solver(sys.argv[1])
solver.on_start.append(lambda: print(solver.iter, flush=True))
solver.solve()
"""


def test_a_killed_run_resumes_from_its_last_snapshot(fields, tmp_path):
    param = fields(snapshot=2, snapshot_prefix=str(tmp_path / "s"), max_iter=10**6)
    script = tmp_path / "solver.prototxt"
    write_text(script, param)
    run = subprocess.Popen([sys.executable, "-c", ENDLESS, script], stdout=subprocess.PIPE)
    for line in run.stdout:
        if int(line) >= 21:
            break
    run.kill()
    run.wait()
    run.stdout.close()
    states = sorted(
        tmp_path.glob("*.solverstate"), key=lambda file: int(file.stem.rpartition("_")[2])
    )
    whole, second = solver_of(fields), solver_of(fields)

    second.restore(states[-1])
    whole.step(second.iter + 3)
    second.step(3)

    assert second.iter >= 23
    assert same(weights(second), weights(whole))
