"""NaN in one process of several: all do the same about it, and all know where it was."""

import logging

import numpy as np
import pytest

from demitasse.errors import ErrorCode, NetError


def poisoned(solver, last):
    """Put NaN into a top of the run's last shard from the third iteration on."""
    if solver.net._context.rank != last:
        return
    net = solver._run.team.nets[-1]

    def spoil(index):
        if net.layers[index].name == "ip":
            net.blobs["bn"].mutable_cpu_data()[0, 0, 0, 0] = np.nan

    net.before_forward.append(spoil)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("options", [
    {}, {"overlap": True}, {"allreduce": "fast"}, {"allreduce": "fp16"},
    {"allreduce": "fp16", "overlap": True},
], ids=str)  # fmt: skip
def test_a_run_that_stops_for_it_stops_alike_and_says_where_it_was(train, size, options):
    def work(solver):
        solver.step(2)
        before = [blob.cpu_data().copy() for blob in solver.net.learnable_params]
        poisoned(solver, size - 1)

        with pytest.raises(NetError) as caught:
            solver.step(2)
        pairs = zip(solver.net.learnable_params, before, strict=True)
        unchanged = all(np.array_equal(blob.cpu_data(), then) for blob, then in pairs)
        return str(caught.value), solver.iter, unchanged

    results, errors = train(
        size, work, num_shards=6, device="cpu", on_nonfinite="raise", timeout=20, **options
    )

    assert errors == [None] * size
    assert len(set(results)) == 1
    (message, iteration, unchanged), _ = results[0]
    assert all(name in message for name in ("nan at iteration 2", "top 'bn'"))
    assert iteration == 2
    assert unchanged


@pytest.mark.parametrize("allreduce", ["deterministic", "fp16"])
def test_a_run_that_goes_on_has_the_same_weights_everywhere(train, caplog, allreduce):
    def work(solver):
        solver.param.clip_gradients = -1
        solver.step(2)
        poisoned(solver, 1)
        solver.step(2)

    with caplog.at_level(logging.WARNING):
        results, errors = train(2, work, device="cpu", allreduce=allreduce)

    assert errors == [None, None]
    assert len({weights for _, weights in results}) == 1
    told = [line for line in caplog.messages if "nan at iteration 2" in line]
    assert len(told) == 2
    assert all("top 'bn'" in line for line in told)


@pytest.mark.parametrize("write", ["on the way", "at the end", "the best"])
def test_weights_that_are_not_finite_end_all_where_the_first_would_write_them(train, write):
    """An update makes them so after a loss that was finite."""

    def work(solver):
        solver.param.snapshot = 2 if write == "on the way" else 0
        solver.param.test_interval = 2 if write == "the best" else 100
        solver.param.test_initialization = False
        solver.param.clip_gradients = -1
        solver.param.max_iter = 2 if write == "at the end" else 3

        def spoil():
            if solver.iter == 1:
                solver.net.params["ip"][1].diff[0] = np.inf  # this class is never found then

        solver.on_gradients_ready.append(spoil)
        solver.solve()

    best = {"keep_best": "accuracy"} if write == "the best" else {}
    _, errors = train(2, work, device="cpu", on_nonfinite="raise", timeout=10, **best)

    assert [type(one) for one in errors] == [NetError, NetError]
    assert str(errors[0]) == str(errors[1])
    assert errors[0].code == ErrorCode.NOT_FINITE
