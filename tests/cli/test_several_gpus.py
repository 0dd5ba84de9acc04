"""Training on several GPUs, as Caffe's command line asks for it: on those of the stand-in."""

from pathlib import Path

import numpy as np
import pytest
from cli_errors import failed_with

from demitasse.errors import ErrorCode
from demitasse.io.data.databases.writing import write_database

pytestmark = pytest.mark.usefixtures("stand_in", "project")

LENET = Path(__file__).resolve().parents[2] / "examples/mnist/train_test.prototxt"


def weights(name="run_iter_20.caffemodel"):
    return Path(name).read_bytes()


@pytest.fixture
def expected(run):
    """What a run of two shards comes to on one GPU."""
    assert run("train -solver solver.prototxt -gpu 0 -shards 2").exit_code == 0
    found = weights()
    for path in Path().glob("run_iter_*"):
        path.unlink()
    return found


@pytest.mark.parametrize(
    "flags", ["-gpu 0,1", "-gpu all", "-gpu=1,0 -allreduce deterministic -expect_processes 2"]
)
def test_each_gpu_trains_on_a_shard(run, expected, flags):
    result = run(f"train -solver solver.prototxt {flags}")

    assert result.exit_code == 0, result.stderr
    assert "NCCL" in result.stderr
    assert "Process 1 uses cuda:" in result.stderr
    assert weights() == expected


def test_only_the_first_logs(run):
    printed = run("train -solver solver.prototxt -gpu 0,1").stderr

    assert printed.count("] Solving stripes") == 1
    assert printed.count("] Iteration 5 ") == 1


def test_lenet_comes_to_the_same_bits(run, project):
    digits = np.random.default_rng(2).integers(0, 256, (24, 1, 28, 28), np.uint8)
    write_database(project / "digits", [(digit, n % 10) for n, digit in enumerate(digits)])
    net = LENET.read_text().replace('"mnist_train_lmdb"', '"digits"')
    Path("lenet.prototxt").write_text(net.replace("batch_size: 64", "batch_size: 4"))
    Path("lenet_solver.prototxt").write_text(
        'train_net: "lenet.prototxt" base_lr: 0.01 momentum: 0.9 weight_decay: 0.0005 '
        'lr_policy: "inv" gamma: 0.0001 power: 0.75 max_iter: 4 random_seed: 1 '
    )
    found = set()

    for flags in ("-gpu 0 -shards 2", "-gpu 0,1"):
        assert run(f"train -solver lenet_solver.prototxt {flags}").exit_code == 0
        found.add(weights("lenet_solver_iter_4.caffemodel"))

    assert len(found) == 1


def test_a_gpu_that_is_not_there_ends_all(run):
    result = run("train -solver solver.prototxt -gpu 0,7")

    assert result.exit_code == 4
    assert all(name in result.stderr for name in ("'cuda:7'", "cuda:0", "cuda:1"))


def test_another_number_of_processes_than_asked_for_is_refused(run):
    result = run("train -solver solver.prototxt -gpu 0,1 -expect-processes 3")

    assert result.exit_code == 3
    failed_with(result, 3, ErrorCode.COUNT_MISMATCH, flag="--expect-processes", got=2, expected=3)


def test_a_failure_of_one_ends_all_and_is_told(run, monkeypatch):
    from demitasse.errors import DataError
    from demitasse.training.distributed.group import DistributedGroup

    passes = DistributedGroup.forward_backward

    def failing(self, batches):
        if self.rank == 1:
            raise DataError("no such record")
        return passes(self, batches)

    monkeypatch.setattr(DistributedGroup, "forward_backward", failing)

    result = run("train -solver solver.prototxt -gpu 0,1 -deadline 20")

    assert result.exit_code == 3
    assert "no such record" in result.stderr
