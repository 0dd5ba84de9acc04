"""A net trained by several processes, for which threads stand."""

import shutil

import h5py
import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, DataError, ErrorCode, ParallelError
from demitasse.training import EarlyStopping, Solver
from demitasse.training.distributed.group import WaitTimes
from demitasse.training.distributed.threads import run_in_threads


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_any_number_of_processes_comes_to_the_same_bits(train, device):
    found = set()
    for size in (1, 2, 3, 8):
        results, errors = train(size, device=device)
        assert errors == [None] * size
        found |= {weights for _, weights in results}

    assert len(found) == 1


def test_shards_are_the_parts_of_one_large_batch(train, folder, tmp_path):
    """Without what looks at one batch alone (BatchNorm), in double precision."""
    text = (folder / "net.prototxt").read_text().replace('type: "BatchNorm"', 'type: "Power"')
    nets = [tmp_path / "shards.prototxt", tmp_path / "whole.prototxt"]
    nets[0].write_text(text.replace('source: "', f'source: "{folder.as_posix()}/'))
    nets[1].write_text(nets[0].read_text().replace("batch_size: 3", "batch_size: 12"))
    options = {"device": "numpy", "dtype": "float64"}

    def weights(net):
        text = (folder / "solver.prototxt").read_text().replace("net.prototxt", str(net))
        (tmp_path / "solver.prototxt").write_text(text.replace("snapshot: 3", ""))
        return tmp_path / "solver.prototxt"

    with Solver(weights(nets[1]), **options) as whole:
        whole.step(6)
        expected = [blob.cpu_data().copy() for blob in whole.net.learnable_params]
    with Solver(weights(nets[0]), num_shards=4, **options) as shards:
        shards.step(6)
        found = [blob.cpu_data().copy() for blob in shards.net.learnable_params]

    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("before", "after"), [(4, 2), (1, 3), (8, 1)])
def test_a_run_is_taken_up_by_another_number_of_processes(train, tmp_path, before, after):
    [(_, expected)], _ = train(1, device="cpu")
    train(before, lambda solver: solver.step(3), device="cpu")

    def go_on(solver):
        solver.restore(tmp_path / "run_iter_3.solverstate", exact=True)
        solver.step(3)

    results, errors = train(after, go_on, device="cpu")

    assert errors == [None] * after
    assert {weights for _, weights in results} == {expected}


def test_the_last_loss_and_test_are_those_of_all_shards(train, folder, tmp_path):
    place = tmp_path / "displayed"
    shutil.copytree(folder, place)
    with (place / "solver.prototxt").open("a") as solver:
        solver.write("display: 2 average_loss: 3")

    def work(solver):
        tests = []
        solver.on_test.append(lambda index, means: tests.append(float(means["loss"])))
        solver.solve()
        return solver.smoothed_loss, tests

    found = []
    for size in (1, 2, 3):
        results, errors = train(size, work, num_shards=5, place=place, device="numpy")
        assert errors == [None] * size
        assert len({(loss, weights) for (loss, _), weights in results}) == 1
        found.append(results[0])

    assert found[1:] == found[:1] * 2


def test_processes_without_a_seed_share_the_seed_of_the_first(train, folder, tmp_path):
    place = tmp_path / "unseeded"
    shutil.copytree(folder, place)
    solver = place / "solver.prototxt"
    solver.write_text(solver.read_text().replace("random_seed: 3", ""))

    def work(solver):
        solver.step(3)
        return {net.seed for net in (*solver._run.team.nets, *solver.test_nets)}

    results, errors = train(3, work, place=place, device="numpy")

    assert errors == [None] * 3
    [seeds] = {frozenset(seeds) for seeds, _ in results}
    assert len(seeds) == 1


@pytest.mark.parametrize(
    ("file", "old", "new", "name"),
    [
        ("solver", "base_lr: 0.1", "base_lr: 0.2", "base_lr"),
        ("solver", "test_interval: 3", "test_interval: 2", "test_interval"),
        ("net", "num_output: 4", "num_output: 3", "layer 'conv' of the training net"),
        ("net", "batch_size: 8", "batch_size: 4", "layer 'data' of test net #0"),
    ],
)
def test_processes_with_other_settings_are_named(folder, tmp_path, file, old, new, name):
    for rank in (0, 1):
        shutil.copytree(folder, tmp_path / str(rank))
    changed = tmp_path / "1" / f"{file}.prototxt"
    changed.write_text(changed.read_text().replace(old, new))

    def train(one):
        solver = tmp_path / str(one.rank) / "solver.prototxt"
        with expect_error(ParallelError, ErrorCode.INCOMPATIBLE, mentions=name, rank=1):
            Solver(solver, communicator=one, device="numpy", base_dir=solver.parent)

    run_in_threads(2, train, timeout=20)


def test_processes_whose_records_give_other_parameter_shapes_are_named(tmp_path):
    text = """
layer { name: "data" type: "HDF5Data" top: "x" hdf5_data_param { source: "list" batch_size: 1 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }
"""
    for rank in (0, 1):
        place = tmp_path / str(rank)
        place.mkdir()
        with h5py.File(place / "x.h5", "w") as file:
            file["x"] = np.ones((4, 3 + rank), np.float32)
        (place / "list").write_text(f"{place / 'x.h5'}\n")
        (place / "net.prototxt").write_text(text)
        (place / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 1 lr_policy: "fixed"')

    def train(one):
        solver = tmp_path / str(one.rank) / "solver.prototxt"
        mentions = "parameter shapes of layer 'ip' of the training net"
        with expect_error(ParallelError, ErrorCode.INCOMPATIBLE, mentions=mentions, rank=1):
            Solver(solver, communicator=one, device="numpy", base_dir=solver.parent)

    run_in_threads(2, train, timeout=20)


def test_processes_with_other_arguments_are_named(folder):
    def train(one):
        options = {"num_shards": 2 + one.rank, "overlap": one.rank == 1}
        mentions = ["process 1", "num_shards", "overlap"]
        with expect_error(ParallelError, ErrorCode.INCOMPATIBLE, mentions=mentions):
            Solver(folder / "solver.prototxt", communicator=one, device="numpy", **options)

    run_in_threads(2, train, timeout=20)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_an_unknown_way_to_sum_gradients_is_refused(folder, num_shards):
    options = {"num_shards": num_shards, "allreduce": "exactly"}
    with expect_error(ConfigError, ErrorCode.UNKNOWN, mentions="deterministic", field="allreduce"):
        Solver(folder / "solver.prototxt", device="numpy", **options)


def test_another_number_of_shards_is_another_run(train, tmp_path):
    train(1, lambda solver: solver.step(3), device="numpy")

    _, [error] = train(
        1, lambda solver: solver.restore(tmp_path / "run_iter_3.solverstate", exact=True),
        num_shards=4, device="numpy",
    )  # fmt: skip

    assert error.details["differences"] == ["ranks"]


def test_tests_have_the_same_results_everywhere(train):
    results, errors = train(2, lambda solver: solver.test_all(), device="numpy")

    assert errors == [None, None]
    [one], [other] = (found for found, _ in results)
    assert one.keys() == other.keys() == {"accuracy", "loss"}
    assert all(one[name] == other[name] for name in one)


class Told:
    """A logger that keeps all numbers."""

    def __init__(self):
        self.numbers = {}

    def scalars(self, iteration, values):
        self.numbers |= {(iteration, name): value for name, value in values.items()}

    def event(self, iteration, kind, facts):
        """Keep nothing."""

    def close(self):
        """Hold nothing."""


def test_loggers_are_told_how_long_each_process_waited(train, caplog):
    def follow(solver):
        solver.param.display = 2
        solver.loggers.append(told := Told())
        solver.step(6)
        return told.numbers

    caplog.set_level("INFO", logger="demitasse")

    results, errors = train(2, follow, device="numpy")

    assert errors == [None, None]
    told = results[0][0]
    for name in ("waiting/process 0", "waiting/process 1", "adding_up"):
        assert all(told[iteration, name] >= 0 for iteration in (2, 4))
    assert any("for process" in line for line in caplog.messages)


def test_who_waits_least_is_the_slowest():
    now = WaitTimes((4.0, 2.5), (0.75, 1.0)).since(WaitTimes((1.0, 2.0), (0.5, 0.5)))

    assert now == WaitTimes((3.0, 0.5), (0.25, 0.5))
    assert now.slowest == 1


def test_a_request_to_one_stops_all_after_the_same_iteration(train):
    def ask(solver):
        if solver.net._context.rank == 1:
            solver.on_start.append(lambda: solver.iter == 2 and solver.request("stop"))
        solver.step(6)
        return solver.iter, solver.stopped

    results, errors = train(2, ask, device="numpy")

    assert errors == [None, None]
    assert {found for found, _ in results} == {(3, True)}


def test_the_failure_of_one_ends_all_and_names_it(train):
    def fail(solver):
        if solver.net._context.rank == 1:

            def wrong(index):
                message = "no such record"
                raise DataError(message)

            solver.net.before_forward.append(wrong)
        solver.step(6)

    _, errors = train(2, fail, device="numpy")

    assert isinstance(errors[1], DataError)
    assert isinstance(errors[0], ParallelError)
    assert "process 1 failed: DataError: no such record" in str(errors[0])


def test_who_does_not_come_in_time_is_named(train):
    def leave(solver):
        if solver.net._context.rank == 1:
            return
        solver.step(6)

    _, errors = train(2, leave, timeout=0.5, device="numpy")

    assert errors[0].details["late"] == [1]


def test_processes_follow_the_metrics_of_the_first(train):
    """The first may have run all batches alone, or another last batch than the others."""

    def work(solver):
        solver.param.test_interval = 1
        if solver._run.team.rank == 0:
            solver.test_nets[0].layer_by_name("accuracy").believable = lambda: False
        solver.step(6)
        return solver.iter

    options = {"device": "numpy", "early_stopping": EarlyStopping("accuracy", 3)}
    results, errors = train(2, work, timeout=10, **options)

    assert errors == [None] * 2
    assert [iteration for iteration, _ in results] == [2, 2]


def test_early_stopping_ends_all_at_once(train):
    results, errors = train(
        2, lambda solver: (solver.step(6) > 0, solver.iter), device="numpy",
        early_stopping=EarlyStopping("accuracy", 1, 2.0),
    )  # fmt: skip

    assert errors == [None, None]
    assert {found for found, _ in results} == {(True, 3)}


def test_only_the_first_writes(train, tmp_path):
    train(3, device="numpy")

    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"run_iter_{n}.{end}" for n in (3, 6) for end in ("caffemodel", "solverstate")]


def test_layers_that_know_no_shard_are_refused(tmp_path):
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "data" type: "DummyData" top: "data" dummy_data_param { shape { dim: 2 } } }'
    )
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: 1'
    )

    with expect_error(ConfigError, ErrorCode.UNSUPPORTED, mentions="DummyData", layer="data"):
        Solver(tmp_path / "solver.prototxt", num_shards=2)


@pytest.mark.parametrize("shard", [0, 4, 5])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_loss_that_is_not_finite_on_one_shard_ends_all_with_what_went_wrong_there(
    train, shard, size
):
    def spoil(solver):
        team = solver._run.team
        for index, net in enumerate(team.nets):
            if team.rank + index * team.size == shard:
                net.before_forward.append(lambda layer, net=net: spoil_one(solver, net, layer))
        solver.step(6)

    def spoil_one(solver, net, layer):
        if solver.iter == 2 and net.layers[layer].type == "SoftmaxWithLoss":
            net.blobs["ip"].mutable_cpu_data()[0, 0] = np.nan

    _, errors = train(size, spoil, on_nonfinite="raise")

    for error in errors:
        assert error.code == ErrorCode.NOT_FINITE
        assert error.details["iteration"] == 2
        assert f"top 'ip' of layer 'ip' (InnerProduct), of shard {shard} (" in str(error)
