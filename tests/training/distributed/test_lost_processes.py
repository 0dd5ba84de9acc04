"""Whatever is lost, at whatever moment, all processes and mpirun end in time, or go on."""

import os
import random
import signal
import sys
import time
from contextlib import nullcontext
from types import ModuleType

import pytest
from expect_error import expect_error
from mpirun import MPIRUN, Job, weights_of

from demitasse.errors import ConfigError, ErrorCode, ParallelError
from demitasse.training.distributed import mpi

CHANCE = random.Random(12)
KILLS = int(os.environ.get("DEMITASSE_KILLS", "3"))
TOLD = "OMPI_MCA_mpi_initial_errhandler"
FAULT = "--with-ft ulfm"
FLAGS = ["--shards", "8", "--device", "cpu", "--resume", "auto"]

# At a moment, one process gets a signal, some milliseconds later if need be, or sleeps.
LOSE = """
import atexit, os, signal, sys, time
rank, moment, name, later = os.environ["LOSE"].split()
def lose(now):
    if (os.environ["OMPI_COMM_WORLD_RANK"], now) != (rank, moment):
        return
    process = os.getpid()
    if name == "sleep":
        open(os.environ["ASLEEP"], "w").close()
        time.sleep(1000)
    elif later == "0":
        os.kill(process, getattr(signal, name))
    elif os.fork() == 0:
        time.sleep(float(later) / 1000)
        os.kill(process, getattr(signal, name))
        os._exit(0)
lose("begun")
import demitasse.training.distributed.mpi as mpi
from demitasse.training import Solver
def around(kind, method, before, behind):
    def run(*args, run=getattr(kind, method), **kwargs):
        lose(before)
        result = run(*args, **kwargs)
        lose(behind)
        return result
    setattr(kind, method, run)
around(mpi.Mpi, "__init__", "meeting", "met")
around(Solver, "solve", "solving", "solved")
atexit.register(lose, "ending")
from demitasse.cli import main
main(sys.argv[1:])
"""

over_mpi = [
    pytest.mark.slow,
    pytest.mark.skipif(MPIRUN is None, reason="mpirun is not there: pip install 'demitasse[mpi]'"),
]


@pytest.fixture
def lose(folder, tmp_path, monkeypatch):
    """Train by processes of which one is lost; return the job."""
    (tmp_path / "lose.py").write_text(LOSE)

    def run(how, size=2, name="run", *, fault_tolerant=False, timeout=15):
        monkeypatch.setenv("LOSE", how)
        flags = [
            *FLAGS,
            "--timeout",
            str(timeout),
            *(["--fault-tolerant"] if fault_tolerant else []),
        ]
        return Job(
            folder, tmp_path / name, size, *flags,
            program=str(tmp_path / "lose.py"), fault=FAULT if fault_tolerant else "",
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    """What a run of one process comes to."""
    prefix = tmp_path_factory.mktemp("one") / "run"
    code, printed = Job(folder, prefix, 1, *FLAGS).end()
    assert code == 0, printed
    return weights_of(prefix)


def pytest_generate_tests(metafunc):
    if "fault_tolerant" in metafunc.fixturenames:
        metafunc.parametrize("fault_tolerant", [False, True], ids=["ending", "surviving"])


class TestOverMpi:
    pytestmark = over_mpi

    @pytest.mark.parametrize("moment", ["begun", "meeting"])
    def test_who_is_stopped_before_all_have_met_ends_all(self, lose, moment, fault_tolerant):
        code, printed = lose(f"1 {moment} SIGSTOP 0", fault_tolerant=fault_tolerant).end()

        assert code not in {0, None}
        assert "error: process 0" in printed
        assert "within 15 s" in printed
        assert "start the run again" in printed

    @pytest.mark.parametrize("moment", ["met", "solved"])
    def test_who_is_stopped_behind_that_is_named(self, lose, moment, fault_tolerant):
        code, printed = lose(f"1 {moment} SIGSTOP 0", fault_tolerant=fault_tolerant).end()

        assert code not in {0, None}
        assert "process 1 " in printed
        assert "start the run again" in printed

    @pytest.mark.parametrize("rank", [0, 1])
    def test_who_is_stopped_when_all_is_done_does_not_keep_mpirun(
        self, lose, tmp_path, expected, rank, fault_tolerant
    ):
        code, printed = lose(f"{rank} ending SIGSTOP 0", fault_tolerant=fault_tolerant).end()

        assert code is not None
        assert f"error: process {rank}" in printed
        assert weights_of(tmp_path / "run") == expected

    def test_all_end_with_mpirun(self, lose, tmp_path, monkeypatch, fault_tolerant):
        asleep = tmp_path / "asleep"
        monkeypatch.setenv("ASLEEP", str(asleep))
        job = lose("1 met sleep 0", fault_tolerant=fault_tolerant, timeout=1000)
        while not asleep.exists():
            assert job.process.poll() is None
            time.sleep(0.01)

        job.process.kill()
        job.end()
        end = time.monotonic() + 60
        while (left := job.workers()) and time.monotonic() < end:
            time.sleep(0.1)

        for worker in left:
            os.kill(worker, signal.SIGKILL)
        assert left == []

    def test_who_is_killed_while_mpi_begins_ends_all_with_an_error(
        self, folder, lose, tmp_path, expected
    ):
        """MPI's own end of a run, there, may keep mpirun for ever, or let it end with code 0."""
        for trial in range(KILLS):
            size = CHANCE.choice([2, 3, 4])
            how = f"{CHANCE.randrange(size)} meeting SIGKILL {CHANCE.uniform(100, 900):.0f}"

            code, printed = lose(how, size, f"run{trial}", fault_tolerant=True).end()

            if code != 0:
                assert "start the run again" in printed, printed
                code, printed = Job(folder, tmp_path / f"run{trial}", 2, *FLAGS).end()
            assert code == 0, printed
            assert weights_of(tmp_path / f"run{trial}") == expected


@pytest.fixture
def library(monkeypatch):
    """A library of MPI that does not begin."""
    inner = ModuleType("mpi4py.MPI")
    inner.Is_initialized = lambda: False
    package = ModuleType("mpi4py")
    package.MPI, package.rc = inner, ModuleType("mpi4py.rc")
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", inner)
    monkeypatch.setenv(TOLD, "")
    monkeypatch.delenv(TOLD)
    return package


def test_open_mpi_is_asked_to_tell_of_errors_while_it_begins(library, monkeypatch):
    def begin():
        assert os.environ[TOLD] == "mpi_errors_return"
        message = "error code: 17"
        raise RuntimeError(message)

    library.MPI.Init_thread = begin

    reason = ["error code: 17", "--resume auto"]
    with expect_error(ParallelError, ErrorCode.LOST_PROCESS, mentions=reason):
        mpi._initialize(finalize=False)
    assert (library.rc.initialize, library.rc.finalize) == (False, False)


def test_a_library_that_is_missing_is_asked_for(library, monkeypatch):
    monkeypatch.delitem(sys.modules, "mpi4py.MPI")
    del library.MPI

    install = "pip install 'demitasse[mpi]'"
    with expect_error(ConfigError, ErrorCode.UNAVAILABLE, mentions=install, extra="mpi"):
        mpi._initialize(finalize=True)


@pytest.mark.parametrize(("away", "late"), [(0.5, [0]), (1000.0, [])], ids=["slow", "suspended"])
def test_time_in_which_a_process_did_not_run_itself_is_not_counted(monkeypatch, away, late):
    """The others of a job that a scheduler has suspended did not run, either."""
    now = 0.0

    class Request:
        def Test(self):  # noqa: N802  # as mpi4py has it
            nonlocal now
            now += away
            return now >= 4 * away

    member = object.__new__(mpi.Mpi)
    member.failures = ()
    monkeypatch.setattr(member, "_watched", lambda seconds: nullcontext(), raising=False)
    monkeypatch.setattr(mpi.time, "monotonic", lambda: now)
    monkeypatch.setattr(mpi.time, "sleep", lambda seconds: None)

    assert member._wait([Request()], 1.0) == late
