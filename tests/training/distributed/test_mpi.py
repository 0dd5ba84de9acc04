"""Processes connected by MPI, as the command line trains with them; on the loopback alone."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mpirun import ITERATIONS, MPIRUN, Job, weights_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MPIRUN is None, reason="mpirun is not there: pip install 'demitasse[mpi]'"),
]

CHANCE = random.Random(11)
FAULT = "--with-ft ulfm"
KILLS = int(os.environ.get("DEMITASSE_KILLS", "3"))


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    """What a run of one process comes to."""
    prefix = tmp_path_factory.mktemp("one") / "run"
    code, printed = Job(folder, prefix, 1, "--shards", "8", "--device", "cpu").end()
    assert code == 0, printed
    return weights_of(prefix)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_any_number_of_processes_writes_the_same_weights(folder, tmp_path, expected, size):
    job = Job(folder, tmp_path / "run", size, "--shards", "8", "--device", "cpu")

    code, printed = job.end()

    assert code == 0, printed
    assert weights_of(tmp_path / "run") == expected


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_exchanged_beside_backward_come_to_the_same_weights(
    folder, tmp_path, expected, size
):
    job = Job(folder, tmp_path / "run", size, "--shards", "8", "--device", "cpu", "--overlap")

    code, printed = job.end()

    assert code == 0, printed
    assert weights_of(tmp_path / "run") == expected


@pytest.mark.parametrize("allreduce", ["fast", "fp16"])
def test_other_ways_to_add_are_the_same_in_every_run(folder, tmp_path, allreduce):
    found = set()
    for name in ("one", "two"):
        job = Job(folder, tmp_path / name, 2, "--allreduce", allreduce, "--device", "cpu")
        code, printed = job.end()
        assert code == 0, printed
        found.add(weights_of(tmp_path / name))

    assert len(found) == 1


def test_any_number_of_processes_finds_the_same_in_tests(folder, tmp_path):
    def tested(size, test_iter):
        job = Job(
            folder, tmp_path / f"run{size}", size, "--shards", "6", "--device", "cpu",
            test=f'net: "{folder}/net.prototxt" test_iter: {test_iter} test_interval: 10',
        )  # fmt: skip
        code, printed = job.end()
        assert code == 0, printed
        return [line.split("] ")[-1] for line in printed.splitlines() if "Test net output" in line]

    for test_iter in (5, 0):
        expected = tested(1, test_iter)

        assert len(expected) == 8  # accuracy and loss of four tests
        assert [tested(size, test_iter) for size in (2, 3)] == [expected] * 2


def test_a_missing_process_is_noticed(folder, tmp_path):
    code, printed = Job(
        folder, tmp_path / "run", 2, "--expect-processes", "3", "--shards", "8"
    ).end()

    assert code == 3
    assert all(name in printed for name in ("--expect-processes 3", "mpirun -n 3"))


def test_processes_of_another_library_s_launcher_do_not_train(tmp_path, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")  # as MPICH's mpirun tells each of two

    trained = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "demitasse", "train", "--solver", "none.prototxt"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert trained.returncode == 3
    assert all(name in trained.stderr for name in ("2 processes", "Open MPI", "srun --mpi=pmix"))


def test_the_failure_of_one_ends_all(folder, tmp_path):
    (tmp_path / "broken.py").write_text(
        "import os, sys\n"
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
        "    import demitasse.training.distributed.group as group\n"
        "    from demitasse.errors import DataError\n"
        "    def passes(self, batches, run=group.DistributedGroup.forward_backward):\n"
        "        def wrong(index):\n"
        "            raise DataError('no such record')\n"
        "        self.nets[0].before_forward.append(wrong)\n"
        "        return run(self, batches)\n"
        "    group.DistributedGroup.forward_backward = passes\n"
        "from demitasse.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    program = str(tmp_path / "broken.py")

    code, printed = Job(folder, tmp_path / "run", 2, program=program).end()

    assert code == 3
    assert "error: no such record" in printed


@pytest.mark.parametrize("fault_tolerant", [[], ["--fault-tolerant"]], ids=["ending", "surviving"])
def test_a_hang_ends_in_an_error_that_names_who_hangs(folder, tmp_path, fault_tolerant):
    flags = ["--timeout", "20", "--shards", "8", *fault_tolerant]
    job = Job(folder, tmp_path / "run", 2, *flags, fault=FAULT if fault_tolerant else "")
    workers = []
    while len(workers) < 2 and job.process.poll() is None:  # looked for first: that takes a while
        workers = job.workers()
    while not Path(f"{tmp_path}/run_iter_3.solverstate").exists() and job.process.poll() is None:
        time.sleep(0.001)
    os.kill(workers[-1], signal.SIGSTOP)

    code, printed = job.end(60)

    assert code != 0, printed
    assert "--timeout" in printed, printed


@pytest.mark.parametrize("kills", [KILLS])
def test_no_kill_changes_a_bit(folder, tmp_path, expected, kills):
    """Any process, the first too, is killed at any moment; the run is taken up by any number."""
    done = 0
    for _ in range(1000):
        job = Job(
            folder, tmp_path / "run", CHANCE.choice([1, 2, 4, 8]),
            "--shards", "8", "--device", "cpu", "--resume", "auto", "--timeout", "30",
        )  # fmt: skip
        if done < kills:
            seen = time.monotonic()
            while not job.workers() and time.monotonic() < seen + 20:
                time.sleep(0.01)
            time.sleep(CHANCE.uniform(0, 4))
            workers = job.workers()
            if workers and job.process.poll() is None:
                os.kill(CHANCE.choice(workers), signal.SIGKILL)
                done += 1
        code, _ = job.end(90)
        if code == 0 and done == kills:
            break
        if code == 0:  # it was quicker; begin anew
            for path in tmp_path.glob("run_iter_*"):
                path.unlink()

    assert weights_of(tmp_path / "run") == expected


def killed_behind(job, snapshots):
    """Kill a process as soon as each snapshot is there, or a moment later, while two are left."""
    for file in snapshots:
        while not file.exists() and job.process.poll() is None:
            time.sleep(0.002)
        time.sleep(CHANCE.uniform(0, 0.1))
        workers = job.workers()
        if len(workers) > 1 and job.process.poll() is None:
            os.kill(CHANCE.choice(workers), signal.SIGKILL)


@pytest.mark.parametrize("more", [[], ["--overlap"]], ids=["after backward", "beside backward"])
def test_the_others_go_on_without_who_is_killed(folder, tmp_path, expected, more):
    """Any process but the last, the first too, at any moment behind the first snapshot."""
    for trial in range(KILLS):
        prefix, size = tmp_path / f"run{trial}", CHANCE.choice([2, 3, 4])
        job = Job(
            folder, prefix, size, "--shards", "8", "--device", "cpu", "--fault-tolerant",
            "--timeout", "60", *more, fault=FAULT,
        )  # fmt: skip

        moments = sorted(CHANCE.sample(range(3, ITERATIONS, 3), CHANCE.randint(1, size - 1)))
        killed_behind(job, [Path(f"{prefix}_iter_{moment}.caffemodel") for moment in moments])
        code, printed = job.end(120)

        assert code == 0, printed
        assert weights_of(prefix) == expected


def test_a_kill_at_any_moment_ends_in_the_same_weights_or_an_error_in_time(
    folder, tmp_path, expected
):
    """Before all processes have met nobody can go on; the run is begun once more then."""
    arguments = ["--shards", "8", "--device", "cpu", "--resume", "auto"]
    for trial in range(KILLS):
        prefix = tmp_path / f"run{trial}"
        job = Job(folder, prefix, 3, *arguments, "--fault-tolerant", "--timeout", "20", fault=FAULT)

        begun = time.monotonic()
        while not job.workers() and time.monotonic() < begun + 20:
            time.sleep(0.01)
        time.sleep(CHANCE.uniform(0, 3))
        workers = job.workers()
        if job.process.poll() is None and workers:
            os.kill(CHANCE.choice(workers), signal.SIGKILL)
        code, printed = job.end(90)

        if code != 0:
            code, printed = Job(folder, prefix, 2, *arguments).end()
        assert code == 0, printed
        assert weights_of(prefix) == expected


def test_going_on_without_a_process_needs_a_library_that_can(folder, tmp_path):
    code, printed = Job(folder, tmp_path / "run", 2, "--shards", "8", "--fault-tolerant").end()

    assert code == 3
    assert "mpirun --with-ft ulfm" in printed


ON_STAND_IN = """
import sys
from gpu.package import put_in
put_in()
from demitasse.cli import main
main(sys.argv[1:])
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the kernels")
@pytest.mark.parametrize(
    ("flags", "used", "connected"),
    [
        ("--device cuda", ["cuda:0", "cuda:1"], True),
        ("--gpu 1,0", ["cuda:1", "cuda:0"], True),
        ("--gpu 0", ["cuda:0", "cuda:0"], False),
    ],
)
def test_each_process_has_a_gpu(folder, tmp_path, flags, used, connected):
    (tmp_path / "stand_in.py").write_text(ON_STAND_IN)
    support = Path(__file__).resolve().parents[2] / "support"
    found = set()

    for size, more in ((1, "--gpu 0 --shards 2"), (2, flags)):
        job = Job(
            folder, tmp_path / f"run{size}", size, *more.split(),
            program=str(tmp_path / "stand_in.py"), path=support,
        )  # fmt: skip
        code, printed = job.end()
        assert code == 0, printed
        found.add(weights_of(tmp_path / f"run{size}"))

    assert len(found) == 1
    for rank, device in enumerate(used):
        assert f"Process {rank} uses {device} (argument)." in printed
    assert ("2 GPUs are connected by NCCL" in printed) is connected
