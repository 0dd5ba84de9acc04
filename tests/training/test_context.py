"""The parts of a training run, each by itself."""

from dataclasses import replace

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Solver
from demitasse.errors import ErrorCode, NetError, SnapshotError
from demitasse.training.checkpoint.checkpointer import Checkpointer
from demitasse.training.evaluation import LocalEvaluator, evaluate
from demitasse.training.loop import compute_gradients, log_rate, scheduled_rate


@pytest.fixture
def run(fields):
    return Solver(fields("test_iter: 2 test_interval: 5"))._run


def test_gradients_of_an_iteration_are_summed_over_its_batches(run):
    run.net.clear_param_diffs()
    run.param.iter_size = 2
    passes = run.net.passes

    compute_gradients(run, iteration=0, rate=0.1)

    assert run.net.passes == passes + 2
    assert len(run.report.losses) == 1
    assert all(blob.asum_diff() > 0 for blob in run.net.learnable_params)


def test_an_iteration_without_a_finite_loss_ends_the_run_that_asked_for_it(fields):
    run = Solver(fields(), on_nonfinite="raise")._run
    run.net.params["ip2"][0].data[...] = np.nan

    with expect_error(NetError, ErrorCode.NOT_FINITE, iteration=3):
        compute_gradients(run, iteration=3, rate=0.1)


def test_the_schedule_takes_a_step_and_says_so(run, lines):
    run.param.lr_policy, run.param.gamma, run.param.display = "multistep", 0.5, 1
    run.param.stepvalue.append(4)

    before, after = scheduled_rate(run, 3, 0), scheduled_rate(run, 4, 0)
    log_rate(run, 4, *after, before[1])

    assert (before, after) == (pytest.approx((0.1, 0)), pytest.approx((0.05, 1)))
    assert "MultiStep Status: Iteration 4, step = 1" in lines()
    assert "Iteration 4, lr = 0.05" in lines()


def test_a_test_asks_before_each_batch_whether_to_go_on(run):
    answers = iter([True, True, True])

    means, loss = evaluate(run.param, 0, run.test_nets[0], LocalEvaluator(lambda: next(answers)))

    assert next(answers, None) is None
    assert set(means) == {"accuracy", "loss"}
    assert loss > 0


def test_a_checkpoint_can_be_resumed_by_another_run(fields, tmp_path):
    param = fields(snapshot_prefix=str(tmp_path / "s"))
    first, second = Solver(param)._run, Solver(param, seed=9)._run

    _, path = Checkpointer(first, keep_last=None, seed=-1).write(iteration=5, step=2)
    state = Checkpointer(second, keep_last=None, seed=-1).restore(path)

    assert (state.iter, state.current_step) == (5, 2)
    for mine, theirs in zip(first.net.learnable_params, second.net.learnable_params, strict=True):
        np.testing.assert_array_equal(mine.data, theirs.data)


def test_other_workers_than_the_first_write_no_checkpoint(run, tmp_path):
    checkpointer = Checkpointer(replace(run, rank=1, world_size=2), keep_last=None, seed=-1)

    with expect_error(SnapshotError, ErrorCode.BAD_STATE, mentions="rank 0"):
        checkpointer.write(0, 0, tmp_path / "s")


def test_a_checkpoint_that_fails_on_the_way_is_remembered(run, lines):
    checkpointer = Checkpointer(run, keep_last=None, seed=-1)

    def full():
        raise SnapshotError("No space left on device")

    checkpointer.try_snapshot(full, iteration=2)

    assert checkpointer.snapshot_pending
    assert any("Iteration 2: No space left on device" in line for line in lines())
