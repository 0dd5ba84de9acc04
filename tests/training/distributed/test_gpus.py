"""A net trained by several GPUs that NCCL connects: the stand-in's, a thread for each."""

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.backends.cupy.library.nccl import new_uid
from demitasse.errors import ErrorCode, ParallelError
from demitasse.memory import transfers
from demitasse.training import Solver
from demitasse.training.distributed.overlap import GradientOverlap
from demitasse.training.distributed.threads import connected_threads, run_in_threads

pytestmark = pytest.mark.usefixtures("stand_in")

TWO = ["cuda:0", "cuda:1"]


@pytest.fixture
def cupy():
    import cupy

    return cupy


@pytest.mark.parametrize(
    ("allreduce", "shards"),
    [
        ("deterministic", 3),
        ("fast", 2),
        (None, 4),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in product(["deterministic", "fast", None], [2, 3, 4])
            if case not in {("deterministic", 3), ("fast", 2), (None, 4)}
        ),
    ],
)
def test_two_gpus_come_to_the_bits_of_one(train, shards, allreduce):
    [(_, expected)], _ = train(1, num_shards=shards, device="cuda:0")

    results, errors = train(2, num_shards=shards, devices=TWO, allreduce=allreduce)

    assert errors == [None, None]
    assert {weights for _, weights in results} == {expected}


def test_only_losses_are_copied_to_the_host(train):
    copied = []

    def step(solver, iterations):
        solver.param.ClearField("test_interval")
        solver.param.ClearField("snapshot")
        solver.step(iterations)

    for iterations in (1, 5):
        before = transfers.bytes_to_host
        _, errors = train(
            2, lambda solver, n=iterations: step(solver, n), num_shards=2, devices=TWO
        )
        copied.append(transfers.bytes_to_host - before)
        assert errors == [None, None]

    losses = 4 * len(TWO)
    assert copied[1] - copied[0] == losses * np.dtype("float32").itemsize


def test_nets_on_one_gpu_add_up_in_the_hosts_memory(train, caplog):
    [(_, expected)], _ = train(1, num_shards=2, device="cuda:0")

    results, errors = train(2, num_shards=2, device="cuda:0")

    assert errors == [None, None]
    assert {weights for _, weights in results} == {expected}
    assert "NCCL" in caplog.text


def test_without_nccl_gradients_add_up_in_the_hosts_memory(train, cupy, monkeypatch, caplog):
    [(_, expected)], _ = train(1, num_shards=2, device="cuda:0")
    monkeypatch.setattr(cupy.cuda.nccl, "available", False)

    results, errors = train(2, num_shards=2, devices=TWO)

    assert errors == [None, None]
    assert {weights for _, weights in results} == {expected}
    assert "pip install" in caplog.text


def test_a_run_is_taken_up_by_another_number_of_gpus(train, tmp_path):
    [(_, expected)], _ = train(1, num_shards=2, device="cuda:0")
    train(2, lambda solver: solver.step(3), num_shards=2, devices=TWO)

    def go_on(solver):
        solver.restore(tmp_path / "run_iter_3.solverstate", exact=True)
        solver.step(3)

    for devices in (["cuda:1"], TWO):
        results, errors = train(len(devices), go_on, num_shards=2, devices=devices)

        assert errors == [None] * len(devices)
        assert {weights for _, weights in results} == {expected}


def test_a_gpu_that_is_lost_is_told_of(train):
    def leave(solver):
        if solver.net.device.name == "cuda:1":
            return
        solver.step(6)

    _, errors = train(2, leave, num_shards=2, timeout=0.5, devices=TWO)

    assert errors[0].details["late"] == [1]


def test_a_gpu_that_fails_is_not_waited_for(train, cupy, monkeypatch):
    monkeypatch.setattr(cupy.cuda.runtime, "eventQuery", lambda event: 700)

    _, errors = train(2, num_shards=2, timeout=60, devices=TWO)

    assert {error.code for error in errors} == {ErrorCode.FAILED}
    assert {error.details["library"] for error in errors} == {"CUDA"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("allreduce", ["deterministic", "fast"])
def test_gpus_that_store_16_bits_come_to_the_bits_of_one(train, dtype, allreduce):
    """With a loss scale that is too large at first, in all of them."""

    def work(solver):
        if solver.loss_scale is not None:
            solver.loss_scale = 2.0**36
        solver.step(6)
        return solver.loss_scale

    [(scale, expected)], _ = train(1, work, num_shards=2, device="cuda:0", dtype=dtype)

    options = {"num_shards": 2, "devices": TWO, "dtype": dtype, "allreduce": allreduce}
    for overlap in (False, True):
        results, errors = train(2, work, overlap=overlap, **options)

        assert errors == [None, None]
        assert results == [(scale, expected)] * 2
    assert (scale is None) == (dtype == "bfloat16")
    assert scale is None or 2.0**30 <= scale < 2.0**36


OVERLAP = ["fast", pytest.param("deterministic", marks=pytest.mark.exhaustive)]


class TestGradientsBesideBackward:
    """With ``overlap``: small buckets, each queued on a stream of its own."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr("demitasse.training.distributed.overlap.BUCKET_BYTES", 200)

    @pytest.mark.parametrize("batches", [1, 3])
    @pytest.mark.parametrize("allreduce", OVERLAP)
    def test_two_gpus_come_to_the_bits_of_one(self, train, allreduce, batches):
        def work(solver):
            solver.param.iter_size = batches
            solver.step(6)

        [(_, expected)], _ = train(1, work, num_shards=4, device="cuda:0", overlap=True)

        results, errors = train(
            2, work, num_shards=4, devices=TWO, allreduce=allreduce, overlap=True
        )

        assert errors == [None, None]
        assert {weights for _, weights in results} == {expected}

    def test_are_added_up_on_another_stream_before_backward_ends(self, train, cupy, monkeypatch):
        added, layers = defaultdict(list), defaultdict(list)
        add, completed = cupy.cuda.nccl.NcclCommunicator.allReduce, GradientOverlap._layer_completed

        def noted(self, *args):
            added[self.rank_id()].append(args[-1])
            add(self, *args)

        def one_by_one(self, layer):
            completed(self, layer)
            for one in self._started:
                one.result()
            rank = self._net._context.rank
            layers[rank].append(len(added[rank]))

        monkeypatch.setattr(cupy.cuda.nccl.NcclCommunicator, "allReduce", noted)
        monkeypatch.setattr(GradientOverlap, "_layer_completed", one_by_one)

        _, errors = train(2, lambda solver: solver.step(1), num_shards=2, devices=TWO)
        assert errors == [None, None]
        [at_once] = added[0]
        added.clear()
        _, errors = train(2, lambda solver: solver.step(1), num_shards=2, devices=TWO, overlap=True)

        assert errors == [None, None]
        *beside, last = added[0]
        assert last == at_once
        assert at_once not in beside
        assert layers[0] == sorted(layers[0])
        assert layers[0][0] == 0
        assert 0 < layers[0][len(layers[0]) // 2] < len(beside) + 1

    def test_a_gpu_that_is_lost_is_told_of(self, train):
        def leave(solver):
            if solver.net.device.name == "cuda:0":
                solver.step(6)

        _, errors = train(2, leave, num_shards=2, timeout=0.5, devices=TWO, overlap=True)

        assert isinstance(errors[0], ParallelError)

    def test_cannot_be_where_they_travel_by_the_host(self, train):
        _, errors = train(2, num_shards=2, device="cuda:0", overlap=True)

        assert all(error.details["field"] == "overlap" for error in errors)


def collectives(timeout=60.0):
    """Connect the two GPUs; return the group as each of them has it."""
    from demitasse.core.device import Device
    from demitasse.training.distributed.nccl import connect_devices

    def connect(one):
        one.timeout = timeout
        return connect_devices(one, Device(TWO[one.rank]))

    return run_in_threads(2, connect)


def on_gpus(work):
    """Have each GPU's thread call ``work(rank, collective, cupy)``; return what each returns."""
    import cupy

    found = collectives()

    def run(one):
        with cupy.cuda.Device(one.rank):
            return work(one.rank, found[one.rank], cupy)

    return run_in_threads(2, run, 60)


class TestArraysOfTwoGpus:
    def test_are_added(self):
        def add(rank, collective, cupy):
            array = cupy.zeros(5, "float32") + (rank + 1)
            collective.allreduce(array)
            return array.get().tolist()

        assert on_gpus(add) == [[3.0] * 5] * 2

    def test_are_those_of_the_first(self):
        def broadcast(rank, collective, cupy):
            array = cupy.zeros(3, "float64") + rank
            collective.broadcast(array)
            return array.get().tolist()

        assert on_gpus(broadcast) == [[0.0] * 3] * 2

    def test_change_hands_in_parts(self):
        def exchange(rank, collective, cupy):
            parts = [cupy.zeros(2, "float32") + 10 * rank, cupy.zeros(0, "float32")]
            received = collective.alltoall(parts, [2, 2] if rank == 0 else [0, 0])
            return [one.get().tolist() for one in received]

        assert on_gpus(exchange) == [[[0.0, 0.0], [10.0, 10.0]], [[], []]]

    def test_are_put_together(self):
        def collect(rank, collective, cupy):
            whole = cupy.zeros(5, "float32")
            collective.allgather(cupy.zeros(2 + rank, "float32") + rank + 1, whole, [0, 2, 5])
            return whole.get().tolist()

        assert on_gpus(collect) == [[1, 1, 2, 2, 2]] * 2


class TestNccl:
    def test_a_gpu_that_never_comes_is_told_of(self, cupy, monkeypatch):
        found = collectives(timeout=0.2)
        monkeypatch.setattr(cupy.cuda.Event, "done", False)

        def add(one):
            with cupy.cuda.Device(one.rank):
                found[one.rank].allreduce(cupy.zeros(3, "float32"))

        with expect_error(ParallelError, mentions="0.2 s"):
            run_in_threads(2, add)

    def test_what_the_library_says_is_told(self, cupy, monkeypatch):
        def fail():
            raise cupy.cuda.nccl.NcclError(2)

        monkeypatch.setattr(cupy.cuda.nccl, "get_unique_id", fail)

        with expect_error(ParallelError, mentions="NCCL_DEBUG=INFO"):
            new_uid()

    def test_says_who_does_not_do_the_same(self):
        from gpu.errors import Misuse

        def differ(rank, collective, cupy):
            collective.allreduce(cupy.zeros(3 + rank, "float32"))

        with expect_error(Misuse, mentions="do not do the same"):
            on_gpus(differ)

    def test_another_gpus_memory_is_refused(self):
        from gpu.errors import Misuse

        def wrong(rank, collective, cupy):
            with cupy.cuda.Device(1 - rank):
                array = cupy.zeros(3, "float32")
            collective.start_allreduce(array)

        with expect_error(Misuse, mentions="memory that is not GPU"):
            on_gpus(wrong)


def test_the_first_failure_of_a_thread_is_raised():
    def fail(one):
        if one.rank == 1:
            raise ValueError("no such file")
        one.allgather_bytes(b"")

    with expect_error(ValueError, mentions="no such file"):
        run_in_threads(2, fail)


def test_a_name_of_a_group_travels_with_the_processes(folder):
    """Whoever has other communicators than ours needs nothing of NCCL's."""
    members = connected_threads(2)

    def train(one):
        device = TWO[one.rank]
        with Solver(
            folder / "solver.prototxt", device=device, communicator=members[one.rank]
        ) as solver:
            solver.param.ClearField("snapshot")
            solver.step(1)
            return solver.iter

    assert run_in_threads(2, train) == [1, 1]
