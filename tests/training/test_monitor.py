"""What is watched in the results of tests: the best, plateaus, and when to stop early."""

import math

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import EarlyStopping, Solver
from demitasse.errors import ConfigError, ErrorCode, SnapshotError
from demitasse.io.proto import SolverParameter
from demitasse.training.checkpoint import snapshot
from demitasse.training.monitor import BestValue, Metric, MetricMonitor, find_metric

TESTED = "test_iter: 2 test_interval: 1"
PLATEAU = 'lr_policy: "plateau" gamma: 0.5 plateau_winsize: [3, 2] base_lr: 0.1'


@pytest.fixture
def nets(fields):
    """The test nets of a solver: accuracy and loss."""
    return Solver(fields(TESTED)).test_nets


def results(value):
    return [{"accuracy": np.array(value, np.float32)}]


# -- metrics -----------------------------------------------------------------------------------


def test_more_accuracy_is_better_and_less_loss(nets):
    assert find_metric("accuracy", nets) == Metric("accuracy", larger=True)
    assert find_metric("loss", nets) == Metric("loss", larger=False)


def test_what_is_better_can_be_said(nets):
    assert find_metric("accuracy:min", nets) == Metric("accuracy", larger=False)
    assert find_metric("loss:max", nets) == Metric("loss", larger=True)


def test_the_first_net_with_the_output_counts(nets):
    class Other:
        outputs = ()

    assert find_metric("accuracy", [Other(), *nets]).net == 1


def test_a_metric_that_is_not_there_is_refused_with_those_that_are(nets):
    known = ["accuracy", "loss"]
    with expect_error(ConfigError, ErrorCode.UNKNOWN, output="f1", known=known):
        find_metric("f1", nets)


def test_a_metric_without_test_nets_is_refused(fields):
    with expect_error(ConfigError, ErrorCode.UNKNOWN, output="accuracy", known=[]):
        Solver(fields(snapshot_prefix="s"), keep_best="accuracy")


def test_a_metric_of_an_unknown_kind_needs_a_direction(fields):
    net = """
    layer { name: "d" type: "DummyData" top: "x" dummy_data_param { shape { dim: 1 } } }
    layer { name: "n" type: "Power" bottom: "x" top: "y" }
    layer { name: "l" type: "DummyData" top: "w" dummy_data_param { shape { dim: 2 } } }
    """
    nets = Solver(fields(TESTED, net=net)).test_nets

    with expect_error(ConfigError, ErrorCode.INVALID, mentions=["y:max", "y:min"], output="y"):
        find_metric("y", nets)
    with expect_error(ConfigError, ErrorCode.COUNT_MISMATCH, output="w", got=2):
        find_metric("w:max", nets)
    assert find_metric("y:max", nets).larger


def test_the_best_value_is_kept():
    best = BestValue("keep_best", "loss", larger=False)

    assert [best.update(v, i) for i, v in enumerate([math.nan, 3, 3, 2, math.nan, 2.5])] == [
        False, True, False, True, False, False,
    ]  # fmt: skip
    assert (best.value, best.iter, best.tests) == (2, 3, 2)


def test_a_least_gain_is_asked_for():
    best = BestValue("early_stopping", "accuracy", larger=True, min_delta=0.1)

    assert [best.update(v, 0) for v in (0.5, 0.59, 0.7)] == [True, False, True]


# -- plateau -----------------------------------------------------------------------------------


def steps(fields, losses, **options):
    """Return the step of each update, as losses come in."""
    param = fields(PLATEAU, **options)
    monitor, step, seen = MetricMonitor(param, []), 0, []
    for iteration, loss in enumerate(losses):
        step = monitor.plateau_step(param, iteration, loss, step)
        seen.append(step)
    return seen


def test_a_plateau_steps_down_after_its_window(fields):
    assert steps(fields, [1.0] * 9) == [0, 0, 0, 1, 1, 2, 2, 2, 2]


def test_a_better_loss_begins_the_window_again(fields):
    assert steps(fields, [1.0, 1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7]) == [
        0, 0, 0, 0, 0, 1, 1, 1, 1,
    ]  # fmt: skip


def test_a_warm_up_does_not_count_for_the_plateau(fields):
    assert steps(fields, [1.0] * 7, warmup_iter=3) == [0, 0, 0, 0, 0, 0, 1]


def test_plateau_lowers_the_rate_of_a_run(fields, lines):
    solver = Solver(fields(f"{PLATEAU} display: 1", drop="lr_policy base_lr"))
    rates = []
    losses = iter([1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5])
    solver.on_gradients_ready.append(lambda: solver._run.report.set_losses([next(losses)]))
    solver.on_start.append(lambda: rates.append(solver.lr))

    solver.step(8)

    assert rates[1:] == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025])
    assert "Plateau Status: Iteration 3, step = 1" in lines()
    assert "Plateau Status: Iteration 4, current minimum_loss = 0.5" in lines()


def test_a_plateau_can_be_that_of_a_metric(fields, nets):
    param = fields(PLATEAU, plateau_metric="accuracy")
    monitor, step, seen = MetricMonitor(param, nets), 0, []
    for iteration, accuracy in enumerate([0.5, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6]):
        monitor.update(monitor.values(results(accuracy)), iteration)
        step = monitor.plateau_step(param, iteration, 1.0 / (iteration + 1), step)
        seen.append(step)

    assert seen == [0, 0, 0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("metric", ["", "accuracy"])
def test_a_plateau_resumes_exactly(fields, tmp_path, metric, backend):
    text = f"{TESTED} {PLATEAU} average_loss: 2"

    def made():
        param = fields(text, drop="lr_policy base_lr", plateau_metric=metric, base_lr=0.001)
        return Solver(param, device=backend)

    def lrs(solver, count):
        seen = []
        for _ in range(count):
            solver.step(1)
            seen.append(solver.lr)
        return seen

    whole, first, second = made(), made(), made()
    in_one = lrs(whole, 16)
    in_two = lrs(first, 5)
    second.restore(first.snapshot(tmp_path / "s")[1])
    in_two += lrs(second, 11)

    assert in_two == in_one
    assert len(set(in_one)) == 3


# -- early stopping ----------------------------------------------------------------------------


def test_a_run_ends_when_nothing_improves(fields, tmp_path, lines):
    solver = Solver(
        fields(TESTED, max_iter=50, snapshot_after_train=True, snapshot_prefix=str(tmp_path / "s")),
        early_stopping=EarlyStopping("accuracy", patience=3),
    )
    values = iter([0.1, 0.5, 0.3, 0.5, 0.4, 0.9])
    solver.test_all = lambda: results(next(values))

    solver.solve()

    assert (solver.iter, solver.early_stopped, solver.stopped) == (4, True, False)
    assert (tmp_path / "s_iter_4.solverstate").exists()
    assert (
        "Early stopping: accuracy has not improved in 3 tests; it was best at iteration 1: 0.5"
        in lines()
    )
    assert lines()[-1] == "Optimization Done."


def test_patience_is_counted_across_a_resume(fields, tmp_path):
    early = EarlyStopping("accuracy", patience=4, min_delta=0.05)

    def run(values, state=None):
        solver = Solver(fields(TESTED), early_stopping=early)
        if state:
            solver.restore(state)
        solver.test_all = lambda: results(values[solver.iter])
        return solver

    values = [0.5, 0.6, 0.61, 0.62, 0.63, 0.64, 0.7]
    first = run(values)
    first.step(3)
    second = run(values, first.snapshot(tmp_path / "s")[1])
    second.step(20)

    assert (second.iter, second.early_stopped) == (5, True)


@pytest.mark.parametrize(
    ("early", "text", "code", "mentions"),
    [
        (EarlyStopping("accuracy", 0), TESTED, ErrorCode.OUT_OF_RANGE, "patience 0"),
        (EarlyStopping("accuracy", 1.5), TESTED, ErrorCode.INVALID, "patience 1.5"),
        (EarlyStopping("accuracy", 1, -1), TESTED, ErrorCode.OUT_OF_RANGE, "min_delta=-1"),
        (EarlyStopping("accuracy", 1), "", ErrorCode.MISSING, "test_interval"),
        (EarlyStopping("nothing", 1), TESTED, ErrorCode.UNKNOWN, "'nothing'"),
        ("accuracy", TESTED, ErrorCode.INVALID, "'accuracy'"),
    ],
)
def test_early_stopping_is_checked_before_training(fields, early, text, code, mentions):
    with expect_error(ConfigError, code, mentions=mentions):
        Solver(fields(text), early_stopping=early)


def test_several_ranks_have_no_common_test(fields):
    with expect_error(ConfigError, ErrorCode.CONFLICT, mentions="'plateau'", world_size=2):
        Solver(fields(PLATEAU, drop="lr_policy"), world_size=2)


# -- the best weights --------------------------------------------------------------------------


def test_the_best_weights_are_written(fields, tmp_path, lines, backend):
    prefix = str(tmp_path / "s")
    solver = Solver(fields(TESTED, snapshot_prefix=prefix), keep_best="accuracy", device=backend)
    values, kept = iter([0.1, 0.5, 0.3, 0.5, 0.6, 0.2]), {}
    solver.test_all = lambda: results(next(values))
    solver.on_start.append(
        lambda: kept.__setitem__(solver.iter, solver.net.params["ip2"][0].cpu_data().copy())
    )

    solver.step(6)

    best = Solver(fields(device_id=0)).net
    best.load(f"{prefix}_best.caffemodel")
    np.testing.assert_array_equal(best.params["ip2"][0].cpu_data(), kept[4])
    path = f"{prefix}_best.caffemodel"
    assert f"Iteration 4, best so far: accuracy = 0.6; snapshotting to {path}" in lines()


def test_a_run_goes_on_without_best_weights_that_cannot_be_written(
    fields, tmp_path, monkeypatch, lines
):
    prefix = str(tmp_path / "s")
    solver = Solver(fields(TESTED, snapshot_prefix=prefix), keep_best="accuracy")
    values, tried = iter([0.1, 0.6, 0.3, 0.2]), []
    solver.test_all = lambda: results(next(values))
    write = snapshot._save

    def full_once(run, path):
        tried.append(solver.iter)
        if len(tried) == 2:
            raise SnapshotError("No space left on device")
        write(run, path)

    monkeypatch.setattr(snapshot, "_save", full_once)

    solver.step(4)

    assert tried == [0, 1, 2]  # the third value beats what is on the disk
    assert any("0.6: No space left on device" in line for line in lines())


def test_a_run_that_lacks_its_best_weights_fails_at_its_end(fields, tmp_path, monkeypatch):
    param = fields(TESTED, snapshot_prefix=str(tmp_path / "s"), max_iter=3)
    solver = Solver(param, keep_best="accuracy")
    values = iter([0.1, 0.5, 0.3, 0.2])
    solver.test_all = lambda: results(next(values, 0.0))

    def full(run, path):
        if "best" in path.name:
            raise SnapshotError("No space left on device")

    monkeypatch.setattr(snapshot, "_save", full)
    monkeypatch.setattr(solver, "snapshot", lambda: None)

    with expect_error(SnapshotError, mentions="No space left"):
        solver.solve()
    assert solver.iter == 3


def test_scores_that_are_not_numbers_are_never_the_best(fields, tmp_path, backend):
    prefix = str(tmp_path / "s")
    solver = Solver(fields(TESTED, snapshot_prefix=prefix), keep_best="accuracy", device=backend)
    solver.step(1)
    before = (tmp_path / "s_best.caffemodel").read_bytes()
    solver.net.params["ip2"][0].data = np.nan

    solver.step(2)

    assert solver.test_all()[0]["accuracy"] == 1  # as in Caffe
    assert (tmp_path / "s_best.caffemodel").read_bytes() == before


def test_the_best_is_remembered_across_a_resume(fields, tmp_path):
    prefix = str(tmp_path / "s")

    def made():
        return Solver(fields(TESTED, snapshot_prefix=prefix), keep_best="accuracy")

    first, second = made(), made()
    first.test_all = lambda: results(0.8)
    first.step(1)
    before = (tmp_path / "s_best.caffemodel").read_bytes()

    second.restore(first.snapshot()[1])
    second.test_all = lambda: results(0.7)
    second.step(3)

    assert (tmp_path / "s_best.caffemodel").read_bytes() == before


def test_another_metric_begins_anew(fields, tmp_path):
    prefix = str(tmp_path / "s")
    first = Solver(fields(TESTED, snapshot_prefix=prefix), keep_best="accuracy")
    first.test_all = lambda: results(0.8)
    first.step(1)
    second = Solver(fields(TESTED, snapshot_prefix=prefix), keep_best="loss")

    second.restore(first.snapshot()[1])

    assert second._run.monitor.best == "loss = none"


def test_keeping_the_best_needs_a_prefix(fields):
    with expect_error(ConfigError, ErrorCode.MISSING, field="snapshot_prefix"):
        Solver(fields(TESTED), keep_best="accuracy")


def test_a_whole_run_and_a_resumed_one_keep_the_same_best(fields, tmp_path, backend):
    def made(folder):
        (tmp_path / folder).mkdir(exist_ok=True)
        prefix = str(tmp_path / folder / "s")
        param = fields(TESTED, snapshot_prefix=prefix, max_iter=12, snapshot=4)
        return Solver(param, keep_best="loss", device=backend)

    made("whole").solve()
    made("parts").step(7)
    made("parts").solve(tmp_path / "parts" / "s_iter_4.solverstate")

    names = [sorted(p.name for p in (tmp_path / f).iterdir()) for f in ("whole", "parts")]
    assert names[0] == names[1]
    for name in names[0]:
        if name.endswith(".caffemodel"):
            ours, theirs = ((tmp_path / f / name).read_bytes() for f in ("parts", "whole"))
            assert ours == theirs, name


def test_solver_parameter_has_no_metric_without_the_policy(nets):
    MetricMonitor(SolverParameter(lr_policy="fixed", plateau_metric="nothing"), nets)
