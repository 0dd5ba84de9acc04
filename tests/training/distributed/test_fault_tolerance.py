"""Runs that go on without processes that die; threads stand for these."""

import hashlib
import threading
from itertools import product

import pytest
from failing_threads import Death, company

from demitasse.core.config import settings
from demitasse.errors import LostProcessError
from demitasse.io.proto import read_solver_params
from demitasse.training import EarlyStopping, Solver, read_state
from demitasse.training.checkpoint.checkpointer import TrainingState
from demitasse.training.distributed.fault_tolerance import FaultTolerantRun

SIZE, SHARDS = 4, 8


def digest(net):
    blobs = net.structure.params_list
    return hashlib.sha256(b"".join(b.cpu_data().tobytes() for b in blobs)).hexdigest()


@pytest.fixture
def run(folder, tmp_path):
    """Train in threads of which some die; return what each that is left comes to, by number."""

    def run(die=lambda member, solver: None, size=SIZE, **options):
        results, errors = {}, []

        def one(member):
            tolerant_run = FaultTolerantRun(member)

            def train():
                param = read_solver_params(folder / "solver.prototxt")
                param.snapshot_prefix = str(tmp_path / "run")
                with Solver(
                    param,
                    base_dir=folder,
                    device="cpu",
                    num_shards=SHARDS,
                    communicator=member,
                    **options,
                ) as solver:
                    with tolerant_run.attach(solver):
                        die(member, solver)
                        solver.solve()
                    return digest(solver.net), solver.iter

            try:
                results[member.number] = tolerant_run.run(train)
            except Death:
                pass
            except BaseException as error:
                errors.append(error)
                member.abort(1)

        threads = [threading.Thread(target=one, args=(member,)) for member in company(size)]
        with settings.override(threads=1):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert errors == []
        return results

    return run


@pytest.fixture
def expected(run):
    """What a run comes to in which nobody dies."""
    [result] = set(run(size=1).values())
    return result


def at_iteration(deaths):
    """Let members die as an iteration begins, given each one's."""

    def prepare(member, solver):
        def look():
            if deaths.get(member.number) == solver.iter:
                member.die()

        solver.on_start.append(look)

    return prepare


EVERY_RUN = {(0, 3), (1, 0), (3, 5)}
"""Who dies at which iteration."""


@pytest.mark.parametrize(
    ("dead", "iteration"),
    [
        pytest.param(*case, marks=() if case in EVERY_RUN else pytest.mark.exhaustive)
        for case in product([0, 1, 3], [0, 3, 5])
    ],
)
def test_the_others_go_on_to_the_same_bits(run, expected, dead, iteration):
    results = run(at_iteration({dead: iteration}))

    assert sorted(results) == [number for number in range(SIZE) if number != dead]
    assert set(results.values()) == {expected}


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param({0: 1, 1: 2, 2: 4}, id="one after the other"),
        pytest.param({1: 2, 2: 2, 3: 2}, id="three at once"),
        pytest.param({0: 0, 3: 0, 1: 5}, id="two at first", marks=pytest.mark.exhaustive),
    ],
)
def test_the_last_one_goes_on_alone(run, expected, deaths):
    results = run(at_iteration(deaths))

    assert len(results) == SIZE - len(deaths)
    assert set(results.values()) == {expected}


def test_gradients_beside_backward_change_nothing(run, expected):
    results = run(at_iteration({0: 2, 2: 4}), overlap=True)

    assert set(results.values()) == {expected}


def test_a_death_during_a_test_lets_it_be_repeated(run, expected):
    tests = {}

    def die_while_testing(member, solver):
        def look(net, done, batches):
            if member.number == 0 and solver.iter == 3:
                member.die()

        solver.on_test_batch.append(look)
        solver.on_test.append(
            lambda net, means: tests.setdefault(solver.iter, []).append(float(means["loss"]))
        )

    results = run(die_while_testing)

    assert set(results.values()) == {expected}
    assert [len(tests[iteration]) for iteration in (0, 3, 6)] == [1, 1, 1]


def test_another_first_process_writes_what_the_dead_one_did_not(run, tmp_path):
    def die_at_its_snapshot(member, solver):
        if member.number == 0:
            write = solver.snapshot
            solver.snapshot = lambda: member.die() if solver.iter == 3 else write()

    undisturbed = run(size=1) and (tmp_path / "run_iter_3.caffemodel").read_bytes()
    for file in tmp_path.glob("run_iter_*"):
        file.unlink()

    run(die_at_its_snapshot)

    assert (tmp_path / "run_iter_3.caffemodel").read_bytes() == undisturbed
    assert (tmp_path / "run_iter_6.solverstate").exists()


def test_snapshots_that_a_dead_process_wrote_are_deleted_in_time(run, tmp_path):
    run(at_iteration({0: 4}), keep_last=1)

    assert [path.name for path in tmp_path.glob("*.solverstate")] == ["run_iter_6.solverstate"]


def test_snapshots_of_a_run_that_keeps_all_are_not_listed_for_deletion(run, tmp_path):
    run(at_iteration({0: 4}))

    state = read_state(tmp_path / "run_iter_6.solverstate")
    assert list(state.resume.snapshot) == []


def test_a_request_to_stop_outlives_who_was_asked_together_with_it(run):
    def ask_and_die(member, solver):
        def look():
            if solver.iter == 2 and member.number == 2:
                solver.request("stop")
            if solver.iter == 2 and member.number == 0:
                member.die()

        solver.on_start.append(look)

    results = run(ask_and_die)

    assert {iteration for _, iteration in results.values()} == {3}


def test_a_run_that_a_test_has_ended_is_not_longer_for_a_death_at_its_end(run):
    def die_at_the_last_snapshot(member, solver):
        if member.number == 0:
            write = solver.snapshot
            solver.snapshot = lambda: member.die() if solver.early_stopped else write()

    early = EarlyStopping("accuracy", 1, 2.0)
    [undisturbed] = set(run(size=1, early_stopping=early).values())

    results = run(die_at_the_last_snapshot, early_stopping=early)

    assert set(results.values()) == {undisturbed}


def test_a_death_behind_the_last_snapshot_changes_no_file(run, tmp_path):
    def die_at_the_end(member, solver):
        if member.number == 0:
            solve = solver.solve
            solver.solve = lambda: solve() or member.die()

    run(size=1)
    undisturbed = (tmp_path / "run_iter_6.caffemodel").read_bytes()

    run(die_at_the_end)

    assert (tmp_path / "run_iter_6.caffemodel").read_bytes() == undisturbed


def test_who_is_behind_takes_what_has_come_furthest():
    members = company(3)
    carried = [TrainingState(4, 0, [], [], b"a"), None, TrainingState(5, 0, [], [], b"c")]
    found = {}

    def one(member):
        tolerant_run = FaultTolerantRun(member)
        tolerant_run.state = carried[member.number]

        began = []

        def train():
            if not began:
                began.append(True)
                message = "as if one had died"
                raise LostProcessError(message)
            return tolerant_run.state

        found[member.number] = tolerant_run.run(train)

    threads = [threading.Thread(target=one, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [found[number].resume for number in range(3)] == [b"c"] * 3
