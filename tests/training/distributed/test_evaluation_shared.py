"""Tests whose batches are shared out among the processes of a run; threads stand for these."""

import numpy as np
import pytest

from demitasse.errors import DataError, ParallelError
from demitasse.training import EarlyStopping

SIZES = (2, 3, 8)


def bits(results):
    return [{name: value.tobytes() for name, value in means.items()} for means in results]


def three_tests(solver, test_iter):
    """Test before, between and after updates; return the bits of all results, and positions."""
    solver.param.test_iter[:] = [test_iter] * len(solver.test_nets)
    found = []
    for _ in range(3):
        found += bits(solver.test_all())
        solver.param.test_initialization = False
        solver.step(1)
    return found, [layer.state() for net in solver.test_nets for layer in net.layers]


@pytest.fixture
def counted(monkeypatch):
    """The number of batches that every process has run, by its rank."""
    from demitasse.training import evaluation

    counts = {}
    has_turn = evaluation.DistributedEvaluator._has_turn

    def counting(self, sources):
        turn = has_turn(self, sources)
        counts[self._team.rank] = counts.get(self._team.rank, 0) + turn
        return turn

    monkeypatch.setattr(evaluation.DistributedEvaluator, "_has_turn", counting)
    return counts


@pytest.mark.parametrize(
    ("test_iter", "device"),
    [
        (5, "cpu"),
        (2, "numpy"),
        (0, "numpy"),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in [(2, "cpu"), (3, "cpu"), (0, "cpu"), (3, "numpy"), (5, "numpy")]
        ),
    ],
)
def test_results_are_the_bits_of_one_process(train, counted, device, test_iter):
    [(expected, _)], _ = train(1, lambda solver: three_tests(solver, test_iter), device=device)

    for size in SIZES:
        counted.clear()
        results, errors = train(size, lambda solver: three_tests(solver, test_iter), device=device)

        assert errors == [None] * size
        assert [found for found, _ in results] == [expected] * size
        assert sum(counted.values()) == 3 * (test_iter or 2)
        assert max(counted.values()) <= 3 * -(-(test_iter or 2) // size) + 1


def with_net(folder, place, old, new, solver=("", "")):
    """Put a solver with another net into a folder of its own; return the folder."""
    text = (
        (folder / "net.prototxt").read_text().replace('source: "', f'source: "{folder.as_posix()}/')
    )
    assert old in text
    (place / "net.prototxt").write_text(text.replace(old, new))
    lines = (folder / "solver.prototxt").read_text()
    (place / "solver.prototxt").write_text(lines.replace(*solver))
    return place


SMALL_LAST = (
    "test_iter: 2",
    "test_iter: 0 test_compute_loss: true",
)


def test_an_epoch_s_last_batch_counts_as_much_as_it_has_records(train, folder, tmp_path):
    """16 records in batches of 5: the last has one."""
    place = with_net(folder, tmp_path, "batch_size: 8", "batch_size: 5", SMALL_LAST)

    [(expected, _)], _ = train(1, lambda s: three_tests(s, 0), place=place, device="numpy")

    for size in SIZES:
        results, errors = train(size, lambda s: three_tests(s, 0), place=place, device="numpy")
        assert errors == [None] * size
        assert [found for found, _ in results] == [expected] * size


def test_every_test_net_is_shared_out(train, folder, tmp_path, counted):
    place = with_net(
        folder, tmp_path, "batch_size: 8", "batch_size: 4",
        ("test_iter: 2", "test_iter: 4 test_iter: 3"),
    )  # fmt: skip

    [(expected, _)], _ = train(1, lambda s: bits(s.test_all()), place=place, device="numpy")
    results, errors = train(2, lambda s: bits(s.test_all()), place=place, device="numpy")

    assert errors == [None, None]
    assert [found for found, _ in results] == [expected, expected]
    assert counted == {0: 4, 1: 3}


def test_a_resumed_run_tests_on_the_same_records(train, tmp_path):
    def whole(solver):
        solver.param.test_iter[:] = [1]
        solver.step(6)
        return bits(solver.test_all())

    def rest(solver):
        solver.param.test_iter[:] = [1]
        solver.restore(tmp_path / "run_iter_3.solverstate", exact=False)
        solver.step(3)
        return bits(solver.test_all())

    [(expected, _)], _ = train(1, whole, device="numpy")
    results, errors = train(3, rest, device="numpy")

    assert errors == [None] * 3
    assert [found for found, _ in results] == [expected] * 3


def test_what_knows_no_shard_is_tested_by_the_first_alone(train, folder, tmp_path, counted, caplog):
    caplog.set_level("INFO", logger="demitasse")
    place = with_net(
        folder, tmp_path, 'layer { name: "conv"',
        'layer { name: "more" type: "DummyData" top: "more" include { phase: TEST } '
        "dummy_data_param { shape { dim: 1 } } } "
        'layer { name: "conv"',
    )  # fmt: skip

    [(expected, _)], _ = train(1, lambda s: bits(s.test_all()), place=place, device="numpy")
    results, errors = train(2, lambda s: bits(s.test_all()), place=place, device="numpy")

    assert errors == [None, None]
    assert [found for found, _ in results] == [expected, expected]
    assert counted == {}
    [reason] = [line for line in caplog.messages if line.startswith("Test net #0 ")]
    assert all(name in reason for name in ("process 0", "layer 'more' (DummyData)"))


def test_a_request_to_any_process_ends_the_test_of_all(train):
    def ask(solver):
        solver.param.test_iter[:] = [6]
        if solver.net._context.rank == 1:
            solver.on_test_batch.append(
                lambda net, done, batches: done == 2 and solver.request("stop")
            )
        before = [layer.state() for layer in solver.test_nets[0].layers]
        results = solver.test_all()
        after = [layer.state() for layer in solver.test_nets[0].layers]
        return results, solver.stopped, after == before

    results, errors = train(2, ask, device="numpy")

    assert errors == [None, None]
    assert [found for found, _ in results] == [([{}], True, True)] * 2


def test_a_snapshot_may_be_asked_for_during_a_test(train, tmp_path):
    def ask(solver):
        if solver.net._context.rank == 1:
            solver.on_test_batch.append(lambda *told: solver.request("snapshot"))
        solver.test_all()

    _, errors = train(2, ask, device="numpy")

    assert errors == [None, None]
    assert (tmp_path / "run_iter_0.solverstate").exists()


def test_the_failure_of_one_ends_the_test_of_all(train):
    def fail(solver):
        if solver.net._context.rank == 1:

            def wrong(index):
                message = "no such record"
                raise DataError(message)

            solver.test_nets[0].before_forward.append(wrong)
        solver.test_all()

    _, errors = train(2, fail, device="numpy")

    assert isinstance(errors[1], DataError)
    assert isinstance(errors[0], ParallelError)
    assert "process 1 failed: DataError: no such record" in str(errors[0])


def test_a_net_that_was_shared_out_may_be_run_by_hand(train):
    def run(solver):
        solver.test_all()
        [net] = solver.test_nets
        losses = [np.float32(net.forward()).tobytes() for _ in range(4)]
        return losses, bits(solver.test_all())

    [(expected, _)], _ = train(1, run, device="numpy")
    results, errors = train(2, run, device="numpy")

    assert errors == [None, None]
    assert [found for found, _ in results] == [expected, expected]


def test_early_stopping_and_plateau_do_the_same_everywhere(train, folder, tmp_path):
    place = with_net(
        folder, tmp_path, "batch_size: 8", "batch_size: 3",
        (
            'lr_policy: "fixed"',
            'lr_policy: "plateau" plateau_metric: "loss" plateau_winsize: 2 gamma: 0.5',
        ),
    )  # fmt: skip

    def follow(solver):
        solver.param.test_interval = 1
        solver.param.test_iter[:] = [5]
        solver.step(6)
        return solver.iter, solver.lr, solver.current_step

    options = {
        "place": place, "device": "numpy", "early_stopping": EarlyStopping("loss", 2, 10.0)
    }  # fmt: skip
    [expected], _ = train(1, follow, **options)
    results, errors = train(3, follow, **options)

    assert errors == [None] * 3
    assert results == [expected] * 3
    assert expected[0][0] < 6
