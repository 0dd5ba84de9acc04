"""What a run does and says: order of events, log lines, tests, requests, callbacks."""

import copy
import logging
import math
import pickle
import re

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Solver
from demitasse.backends.numpy import updates
from demitasse.errors import ConfigError, DeviceError, ErrorCode, NetError, SnapshotError
from demitasse.training.report import TrainReport
from demitasse.training.tracking import LoggerGroup

# The patterns by which Caffe's parse_log finds its numbers.
ITERATION = r"Iteration (\d+)"
RATE = r"lr = ([-+]?[0-9]*\.?[0-9]+([eE]?[-+]?[0-9]+)?)"
TRAIN_OUTPUT = r"Train net output #(\d+): (\S+) = ([\.\deE+-]+)"
TEST_OUTPUT = r"Test net output #(\d+): (\S+) = ([\.\deE+-]+)"

TESTED = "test_iter: 2 test_interval: 4 display: 2"


def matching(lines, pattern):
    return [line for line in lines if re.search(pattern, line)]


def test_lines_of_a_whole_run(fields, lines):
    solver = Solver(fields(TESTED))

    solver.solve()

    said = [re.sub(r"= -?[\d.e-]+", "= N", line) for line in lines()]
    said = said[said.index("Solver scaffolding done.") + 1 :]
    said = [re.sub(r"\(.* iter/s, .*s/2 iters\)", "(speed)", line) for line in said]
    test = [
        "    Test net output #0: accuracy = N",
        "    Test net output #1: loss = N (* 1 = N loss)",
    ]
    train = "    Train net output #0: loss = N (* 1 = N loss)"
    assert said == [
        "Solving small",
        "Learning Rate Policy: fixed",
        "Iteration 0, Testing net (#0)", *test,
        "Iteration 0 (speed), loss = N", train, "Iteration 0, lr = N",
        "Iteration 2 (speed), loss = N", train, "Iteration 2, lr = N",
        "Iteration 4, Testing net (#0)", *test,
        "Iteration 4 (speed), loss = N", train, "Iteration 4, lr = N",
        "Iteration 6 (speed), loss = N", train, "Iteration 6, lr = N",
        "Iteration 8, loss = N",
        "Iteration 8, Testing net (#0)", *test,
        "Optimization Done.",
    ]  # fmt: skip


def test_lines_are_those_that_parse_log_reads(fields, lines):
    Solver(fields(TESTED)).step(3)

    assert len(matching(lines(), ITERATION)) == 5
    assert [re.search(RATE, line).group(1) for line in matching(lines(), RATE)] == ["0.1", "0.1"]
    assert len(matching(lines(), TRAIN_OUTPUT)) == 2
    found = [re.search(TEST_OUTPUT, line).group(1, 2) for line in matching(lines(), TEST_OUTPUT)]
    assert found == [("0", "accuracy"), ("1", "loss")]


def test_records_carry_their_numbers(fields, caplog):
    caplog.set_level(logging.INFO, "demitasse")

    Solver(fields(TESTED)).step(1)

    metrics = [r.metrics for r in caplog.records if hasattr(r, "metrics")]
    assert [m["phase"] for m in metrics] == ["test", "test", "train", "train", "train"]
    assert {"iter": 0, "phase": "train", "lr": pytest.approx(0.1)} in metrics
    assert metrics[0]["name"] == "accuracy"


def test_nothing_is_said_when_display_is_off(fields, lines):
    solver = Solver(fields())
    before = len(lines())

    solver.step(2)

    assert lines()[before:] == []


def test_the_displayed_loss_is_the_mean_of_the_last_ones(fields, monkeypatch):
    solver = Solver(fields(average_loss=3))
    losses = iter([1.0, 2.0, 6.0, 10.0])
    monkeypatch.setattr(solver.net, "forward_backward", lambda: next(losses))
    seen = []

    for _ in range(4):
        solver.step(1)
        seen.append(solver.smoothed_loss)

    assert seen == [1.0, 1.5, 3.0, 6.0]


def test_the_window_of_the_displayed_loss_may_change(fields, monkeypatch):
    solver = Solver(fields())
    losses = iter([1.0, 2.0, 6.0, 10.0])
    monkeypatch.setattr(solver.net, "forward_backward", lambda: next(losses))
    seen = []

    for window in (1, 2, 3, 1):
        solver.param.average_loss = window
        seen.append(solver.step(1))

    assert seen == [1.0, 1.5, 3.0, 10.0]


@pytest.mark.parametrize(
    ("losses", "mean"),
    [([1e308] * 3, math.inf), ([math.inf, -math.inf], math.nan), ([math.nan, 1.0], math.nan)],
)
def test_losses_may_be_of_any_size(losses, mean):
    report = TrainReport(5, LoggerGroup(list, dict), passes=1)

    report.set_losses(losses)

    assert report.smoothed_loss == pytest.approx(mean, nan_ok=True)


def test_the_rate_of_the_next_update_can_be_asked_for(fields):
    param = fields('lr_policy: "multistep" gamma: 0.1 stepvalue: 1 stepvalue: 3', drop="lr_policy")
    solver = Solver(param)
    asked, taken = [], []

    for _ in range(4):
        asked.append((solver.next_lr, solver.next_lr)[1])
        solver.step(1)
        taken.append(solver.lr)

    assert asked == taken == pytest.approx([0.1, 0.01, 0.01, 0.001])
    assert solver.current_step == 2


def test_asking_for_the_next_rate_takes_no_step(fields):
    param = fields('lr_policy: "multistep" gamma: 0.1 stepvalue: 0', drop="lr_policy")
    solver = Solver(param)

    assert solver.next_lr == pytest.approx(0.01)
    assert solver.current_step == 0
    assert np.isnan(solver.lr)


def test_the_loss_of_an_iteration_is_the_mean_of_its_batches(fields, monkeypatch):
    solver = Solver(fields(iter_size=2))
    losses = iter([1.0, 2.0])
    monkeypatch.setattr(solver.net, "forward_backward", lambda: next(losses))

    solver.step(1)

    assert solver.smoothed_loss == 1.5


def test_iter_size_adds_gradients_up(fields, backend):
    """Two batches of one pass each are one update of their mean gradient."""
    solver = Solver(fields(iter_size=2, momentum=0, weight_decay=0), device=backend)
    weight = solver.net.params["ip2"][0]
    before = weight.data.copy()
    other = Solver(fields(momentum=0, weight_decay=0, base_lr=0), device=backend)
    gradients = []
    for _ in range(2):
        other.net.clear_param_diffs()
        other.net.forward_backward()
        gradients.append(other.net.params["ip2"][0].diff.copy())

    solver.step(1)

    np.testing.assert_allclose(weight.data, before - 0.1 * sum(gradients) / 2, rtol=1e-5, atol=1e-7)


def test_multistep_says_when_it_steps(fields, lines):
    solver = Solver(fields("lr_policy: 'multistep' gamma: 0.1 stepvalue: 1 stepvalue: 3"))

    solver.step(4)

    assert matching(lines(), "MultiStep") == [
        "MultiStep Status: Iteration 1, step = 1",
        "MultiStep Status: Iteration 3, step = 2",
    ]
    assert solver.lr == pytest.approx(0.001)


def test_debug_info_speaks_when_a_line_is_displayed(fields, lines):
    solver = Solver(fields("debug_info: true display: 2"))

    solver.step(2)

    assert len(matching(lines(), r"\[Forward\] Layer loss, top blob loss")) == 1
    assert len(matching(lines(), r"\[Backward\] All net params")) == 1


# -- testing -----------------------------------------------------------------------------------


def test_a_test_returns_means_over_its_batches(fields, backend):
    solver = Solver(fields("test_iter: 3 test_interval: 100"), device=backend)
    net = solver.test_nets[0]
    losses = []
    net.after_forward.append(
        lambda i: i == len(net.layers) - 1 and losses.append(float(net.blobs["loss"].data))
    )

    got = solver.test(0)

    assert list(got) == ["accuracy", "loss"]
    assert got["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert len(losses) == 3


def test_test_loss_is_told_when_asked_for(fields, lines):
    solver = Solver(fields("test_iter: 2 test_interval: 1 test_compute_loss: true"))

    [means] = solver.test_all()

    [line] = matching(lines(), "^Test loss: ")
    assert float(line.split()[-1]) == pytest.approx(float(means["loss"]), rel=1e-4)


def test_a_test_changes_no_training(fields, backend):
    plain = Solver(fields(), device=backend)
    tested = Solver(fields("test_iter: 2 test_interval: 1"), device=backend)

    plain.step(3)
    tested.step(3)

    np.testing.assert_array_equal(plain.net.params["ip1"][0].data, tested.net.params["ip1"][0].data)


def test_no_test_before_training_when_it_is_not_wanted(fields, lines):
    solver = Solver(fields(TESTED, test_initialization=False))

    solver.step(5)

    assert matching(lines(), "Testing net") == ["Iteration 4, Testing net (#0)"]


# -- callbacks, requests, ranks ----------------------------------------------------------------


def test_callbacks_are_called_around_the_passes(fields):
    solver = Solver(fields(iter_size=2))
    events = []
    solver.on_start.append(lambda: events.append("start"))
    solver.net.before_forward.append(lambda i: i == 0 and events.append("forward"))
    solver.on_gradients_ready.append(lambda: events.append(f"ready {solver.iter}"))

    solver.step(2)

    passes = ["start", "forward", "forward"]
    assert events == [*passes, "ready 0", *passes, "ready 1"]


def test_a_callback_may_remove_itself(fields, tmp_path):
    solver = Solver(fields(snapshot_prefix=str(tmp_path / "s")))
    net = solver.net
    lists = [solver.on_start, solver.on_gradients_ready, solver.on_snapshot,
             net.after_forward, net.after_backward]  # fmt: skip
    called = [0] * len(lists)
    for index, callbacks in enumerate(lists):

        def first(*_, callbacks=callbacks):
            callbacks.pop(0)

        def second(*_, index=index):
            called[index] += 1

        callbacks += [first, second]

    solver.step(1)
    solver.snapshot()

    assert called == [1, 1, 1, len(net.layers), len(net.layers)]


def test_a_callback_may_change_gradients(fields):
    solver = Solver(fields(momentum=0, weight_decay=0))
    before = solver.net.params["ip2"][0].data.copy()
    solver.on_gradients_ready.append(solver.net.clear_param_diffs)

    solver.step(1)

    np.testing.assert_array_equal(solver.net.params["ip2"][0].data, before)


def test_a_request_to_stop_ends_a_run_after_its_iteration(fields, tmp_path, lines):
    solver = Solver(fields(snapshot_after_train=True, snapshot_prefix=str(tmp_path / "s")))
    solver.on_start.append(lambda: solver.iter == 2 and solver.request("stop"))

    solver.solve()

    assert solver.iter == 3
    assert solver.stopped
    assert lines()[-1] == "Optimization stopped early."
    assert (tmp_path / "s_iter_3.solverstate").is_file()


def test_a_stopped_solver_can_go_on(fields):
    solver = Solver(fields())
    solver.request("stop")
    solver.step(5)

    solver.step(5)

    assert (solver.iter, solver.stopped) == (6, False)


def test_to_ask_twice_is_to_ask_once(fields):
    solver = Solver(fields())
    solver.request("stop")
    solver.request("stop")
    solver.step(5)

    solver.step(5)

    assert (solver.iter, solver.stopped) == (6, False)


def test_a_request_for_a_snapshot_is_served_and_the_run_goes_on(fields, tmp_path):
    solver = Solver(fields(snapshot_prefix=str(tmp_path / "s")))
    solver.on_start.append(lambda: solver.iter == 1 and solver.request("snapshot"))

    solver.step(4)

    assert [f.name for f in tmp_path.glob("*.solverstate")] == ["s_iter_2.solverstate"]
    assert solver.iter == 4


def test_a_request_to_stop_interrupts_a_test(fields, lines):
    solver = Solver(fields("test_iter: 5 test_interval: 2", display=1))
    net = solver.test_nets[0]
    net.before_forward.append(lambda i: solver.iter == 2 and i == 0 and solver.request("stop"))

    solver.step(5)

    assert solver.iter == 2
    assert lines()[-1] == "Test interrupted."


def test_a_request_can_be_taken_back(fields):
    solver = Solver(fields())
    solver.request("stop")

    solver.request(None)
    solver.step(2)

    assert solver.iter == 2


def test_an_unknown_request_is_refused(fields):
    with expect_error(ConfigError, ErrorCode.UNKNOWN, got="pause"):
        Solver(fields()).request("pause")


def test_only_the_first_rank_tests_and_writes(fields, tmp_path, lines):
    solver = Solver(
        fields("test_iter: 1 test_interval: 1 snapshot: 1",
               snapshot_prefix=str(tmp_path / "s"), snapshot_after_train=True),
        rank=1, world_size=2,
    )  # fmt: skip

    solver.solve()

    assert not matching(lines(), "Testing net")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (1, 1), (0, 0)])
def test_a_rank_that_no_solver_of_the_group_has_is_refused(fields, rank, world_size):
    mentions = (f"rank {rank}", f"world_size {world_size}")
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, mentions=mentions, got=rank):
        Solver(fields(), rank=rank, world_size=world_size)


def test_shards_and_ranks_are_two_ways_to_share_data(fields):
    with expect_error(ConfigError, ErrorCode.CONFLICT, mentions="4 shards", world_size=2):
        Solver(fields(), rank=1, world_size=2, num_shards=4)


def test_of_ranks_that_are_asked_for_a_snapshot_only_the_first_writes_it(fields, tmp_path):
    param = fields(snapshot_prefix=str(tmp_path / "s"))
    first, second = (Solver(param, rank=rank, world_size=2) for rank in range(2))

    second.request("snapshot")
    second.step(1)

    assert second.iter == 1
    assert not list(tmp_path.iterdir())
    with expect_error(SnapshotError, ErrorCode.BAD_STATE, rank=1):
        second.snapshot()

    first.request("snapshot")
    first.step(1)

    assert len(list(tmp_path.iterdir())) == 2


# -- what goes wrong ---------------------------------------------------------------------------


def poisoned(fields, **options):
    solver = Solver(fields(), **options)
    solver.net.params["ip2"][0].data[0, 0] = math.nan
    return solver


def test_a_loss_that_is_not_finite_is_explained_once(fields, lines):
    solver = poisoned(fields)

    solver.step(2)

    [line] = matching(lines(), "the loss is nan")
    assert "at iteration 0" in line
    assert "parameter 0 of layer 'ip2' (InnerProduct)" in line
    assert "learning rate" not in line  # no update has used one


def test_a_loss_that_is_not_finite_stops_a_run_before_the_update(fields, backend):
    solver = poisoned(fields, on_nonfinite="raise", device=backend)
    before = solver.net.params["ip1"][0].data.copy()

    with expect_error(NetError, ErrorCode.NOT_FINITE, iteration=0):
        solver.step(1)

    assert solver.iter == 0
    np.testing.assert_array_equal(solver.net.params["ip1"][0].data, before)


def test_solve_needs_max_iter(fields):
    with expect_error(ConfigError, ErrorCode.MISSING, field="max_iter"):
        Solver(fields(drop="max_iter")).solve()


def test_a_solver_closes_its_nets(fields):
    with Solver(fields("test_iter: 1 test_interval: 1")) as solver:
        closed = []
        for net in (solver.net, *solver.test_nets):
            net.layers[0].close = lambda net=net: closed.append(net)

    assert closed == [solver.net, *solver.test_nets]


def test_a_stopped_solver_can_be_tested(fields):
    solver = Solver(fields("test_iter: 2 test_interval: 100 test_initialization: false"))
    solver.request("stop")
    solver.step(5)

    [results] = solver.test_all()

    assert results


def test_a_solver_whose_update_failed_does_not_continue(fields, monkeypatch):
    def refuse(*arguments):
        raise DeviceError("no memory", code=ErrorCode.LIMIT, resource="memory")

    with Solver(fields(""), device="numpy") as solver:
        with monkeypatch.context() as patch:
            patch.setattr(updates, "_update", refuse)
            with expect_error(DeviceError, ErrorCode.LIMIT, resource="memory"):
                solver.step(1)

        with pytest.raises(SnapshotError):
            solver.step(1)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [("iter_size", 0, "OUT_OF_RANGE"), ("base_lr", math.nan, "NOT_FINITE"),
     ("test_iter", [], "INVALID"), ("test_iter", [-1], "INVALID")],
)  # fmt: skip
def test_fields_that_changed_are_checked(fields, field, value, code):
    solver = Solver(fields(TESTED))
    if isinstance(value, list):
        solver.param.test_iter[:] = value
    else:
        setattr(solver.param, field, value)

    with expect_error(ConfigError, ErrorCode[code], field=field):
        solver.step(1)

    assert solver.iter == 0


@pytest.mark.parametrize("iterations", [1.5, "2", math.inf, None])
def test_a_part_of_an_update_is_refused(fields, iterations):
    solver = Solver(fields())

    with expect_error(ConfigError, ErrorCode.INVALID, got=iterations):
        solver.step(iterations)

    assert solver.iter == 0


def test_whole_numbers_of_any_type_are_iterations(fields):
    solver = Solver(fields())

    solver.step(np.int64(2))
    solver.step(2.0)

    assert solver.iter == 4
    assert type(solver.iter) is int


def test_an_unknown_action_for_losses_that_are_not_finite_is_refused(fields):
    with expect_error(ConfigError, ErrorCode.INVALID, field="on_nonfinite", got="rasie"):
        Solver(fields(), on_nonfinite="rasie")


@pytest.mark.parametrize("copies", [copy.copy, copy.deepcopy, pickle.dumps])
def test_solvers_are_not_copied_but_restored(fields, copies):
    with pytest.raises(TypeError, match="state_dict"):
        copies(Solver(fields(), device="numpy"))


def test_an_iterator_that_ends_in_a_layer_is_not_taken_for_a_fault_of_training(fields):
    solver = Solver(fields(iter_size=2), device="numpy")
    solver.net.before_forward.append(lambda index: next(iter(())))

    with pytest.raises(StopIteration):
        solver.step(1)
