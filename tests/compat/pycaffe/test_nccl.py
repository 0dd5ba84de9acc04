"""Scripts that train one net on several GPUs: those of the stand-in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from expect_error import expect_error
from needs import needs

import demitasse.compat.pycaffe as caffe
from demitasse.errors import ConfigError
from demitasse.io.data.databases.writing import write_database
from demitasse.training import Solver
from demitasse.training.distributed.gradient_buffer import GradientAverager
from demitasse.training.distributed.threads import run_in_threads

NET = """
name: "small"
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "records" batch_size: 2 backend: LMDB } transform_param { scale: 0.01 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "one" type: "InnerProduct" bottom: "bn" top: "one"
  inner_product_param { num_output: 48 weight_filler { type: "xavier" } }
  param { name: "shared" } param { name: "bias" } }
layer { name: "two" type: "InnerProduct" bottom: "one" top: "two"
  inner_product_param { num_output: 48 weight_filler { type: "xavier" } }
  param { name: "shared" } param { name: "bias" } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "two" bottom: "label" top: "loss" }
"""

SOLVER = """
net: "net.prototxt" base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" max_iter: 5 iter_size: 2
snapshot_prefix: "run" random_seed: 1 display: 1
"""

SCRIPT = """
import sys
from multiprocessing import get_context

import caffe


def work(rank, gpus, uid):
    caffe.set_device(gpus[rank])
    caffe.set_mode_gpu()
    caffe.set_solver_count(len(gpus))
    caffe.set_solver_rank(rank)
    caffe.set_multiprocess(True)
    solver = caffe.SGDSolver("solver.prototxt")
    nccl = caffe.NCCL(solver, uid)
    nccl.bcast()
    solver.add_callback(nccl)
    if "layers" in sys.argv:
        solver.net.after_backward(nccl)
    solver.step(solver.param.max_iter)
    if rank == 0:
        solver.snapshot()


if __name__ == "__main__":
    assert caffe.has_nccl()
    caffe.init_log()
    uid = caffe.NCCL.new_uid()
    fork = get_context("fork")
    started = [fork.Process(target=work, args=(rank, [0, 1], uid)) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    sys.exit(max(process.exitcode for process in started))
"""

ON_STAND_IN = """
import sys
from gpu.package import put_in
put_in()
from demitasse.compat.pycaffe.launch import main
main(sys.argv[1:])
"""

SUPPORT = Path(__file__).resolve().parents[2] / "support"


@pytest.fixture
def place(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (20, 1, 4, 4), np.uint8)
    write_database(tmp_path / "records", [(image, n % 48) for n, image in enumerate(images)])
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def params(net):
    return [blob.cpu_data().copy() for blob in net.structure.params_list]


@pytest.fixture
def expected(stand_in, place):
    """What a run of two shards on one GPU comes to."""
    with Solver("solver.prototxt", device="cuda:0", num_shards=2) as solver:
        solver.step(5)
        return params(solver.net)


class TestTwoProcesses:
    @needs("fork")
    @pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the kernels")
    def test_train_one_net(self, place, expected):
        (place / "train.py").write_text(SCRIPT)
        (place / "on_stand_in.py").write_text(ON_STAND_IN)

        done = subprocess.run(
            [sys.executable, "on_stand_in.py", "train.py"],
            env={**os.environ, "PYTHONPATH": f"{SUPPORT}:{os.environ.get('PYTHONPATH', '')}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

        assert done.returncode == 0, done.stderr
        assert done.stderr.count("] Iteration 3 ") == 1
        with Solver("solver.prototxt", device="numpy") as solver:
            solver.restore("run_iter_5.solverstate")
            for found, wanted in zip(params(solver.net), expected, strict=True):
                np.testing.assert_array_equal(found, wanted)


def train(work):
    """Let two threads each have a solver and its gradients, on a GPU; return their parameters."""
    from demitasse.core.device import Device

    uid = caffe.NCCL.new_uid()

    def one(member):
        device = Device(f"cuda:{member.rank}")
        with Solver("solver.prototxt", device=device, rank=member.rank, world_size=2) as solver:
            group = device.backend.connector.join(uid, member.rank, 2, 60.0)
            gradients = GradientAverager(solver.net, group)
            gradients.broadcast_weights()
            solver.on_gradients_ready.append(gradients.finish)
            work(solver, gradients)
            solver.step(5)
            return params(solver.net)

    return run_in_threads(2, one)


@pytest.mark.parametrize("layers", [range(0), range(6), range(2, 4)], ids=["none", "all", "some"])
def test_gradients_are_added_all_at_once_or_layer_by_layer(expected, layers):
    """Shared parameters go with the first of their layers, when all have added to them."""

    def by_layers(solver, gradients):
        if layers:
            solver.net.after_backward.append(
                lambda index: index in layers and gradients.start_layer(index)
            )

    for found in train(by_layers):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-7)


def test_the_first_gives_its_weights_to_the_others(expected):
    def differ(solver, gradients):
        if solver.net.device.name == "cuda:1":
            for blob in solver.net.learnable_params:
                blob.data[...] += 1
        gradients.broadcast_weights()

    for found in train(differ):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


class TestWithoutGpus:
    def test_the_way_for_cpus_is_named(self, place):
        caffe.set_mode_cpu()
        caffe.set_solver_count(2)
        solver = caffe.SGDSolver("solver.prototxt")

        with expect_error(
            ConfigError, library="NCCL", mentions=["cpu", "mpirun -n 2 demitasse train"]
        ):
            caffe.NCCL(solver, caffe.NCCL.new_uid())

    def test_a_missing_library_is_named(self, stand_in, place, monkeypatch):
        import cupy

        monkeypatch.setattr(cupy.cuda.nccl, "available", False)
        caffe.set_mode_gpu()
        caffe.set_solver_count(2)
        solver = caffe.SGDSolver("solver.prototxt")

        assert not caffe.has_nccl()
        with expect_error(ConfigError, library="NCCL", mentions="pip install"):
            caffe.NCCL(solver, caffe.NCCL.new_uid())


def test_each_solver_reads_its_share(place):
    labels = []

    for rank in range(2):
        caffe.set_solver_count(2)
        caffe.set_solver_rank(rank)
        solver = caffe.SGDSolver("solver.prototxt")
        solver.net.forward()
        labels.append(solver.net.blobs["label"].data.tolist())

    assert labels == [[0, 2], [1, 3]]


def test_ranks_are_those_of_the_solvers(place):
    caffe.set_solver_rank(1)

    with expect_error(ConfigError, field="solver_rank", got=1):
        caffe.SGDSolver("solver.prototxt")
    with expect_error(ConfigError, field="solver_count", got=0):
        caffe.set_solver_count(0)
    with expect_error(ConfigError, field="solver_rank", got=-1):
        caffe.set_solver_rank(-1)
    assert (caffe.solver_count(), caffe.solver_rank()) == (1, 1)
