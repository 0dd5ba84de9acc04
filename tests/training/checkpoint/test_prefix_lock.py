"""Of several processes, one writes the snapshots of a prefix."""

import errno
import gc
import logging
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest
from expect_error import expect_error
from needs import needs

from demitasse import Solver
from demitasse.errors import ErrorCode, SnapshotError
from demitasse.io.proto import write_text
from demitasse.training.checkpoint import prefix_lock
from demitasse.training.checkpoint.prefix_lock import PrefixLock, lock_path

RUN = """
import sys, time
from demitasse import Solver
solver = Solver(sys.argv[1], seed=int(sys.argv[2]), device="numpy")
solver.step(1)
print("ready", flush=True)
time.sleep(600)
"""

FORKED = """
import gc, os, sys, time
from demitasse.errors import SnapshotError
from demitasse.training.checkpoint.prefix_lock import PrefixLock

lock = PrefixLock()
lock.take(sys.argv[1])
child = os.fork()
if not child:
    try:
        PrefixLock().take(sys.argv[1])
    except SnapshotError:
        del lock
        gc.collect()
        os._exit(7)
    os._exit(1)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
time.sleep(600)
"""


@pytest.fixture
def solver_file(fields, tmp_path):
    file = tmp_path / "solver.prototxt"
    write_text(file, fields(snapshot=1, snapshot_prefix=str(tmp_path / "s"), max_iter=2))
    return file


@contextmanager
def started(code, *arguments):
    """Run code in another process during the block; yield the process and its first line."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


@pytest.fixture
def other_run(solver_file):
    """A run in another process, after its first snapshot."""
    with started(RUN, solver_file, "4") as (process, line):
        assert line == "ready\n"
        yield process


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_second_process_is_refused_before_it_trains(solver_file, other_run, tmp_path):
    before = contents(tmp_path)
    with Solver(solver_file, device="numpy") as solver:
        for train in (solver.solve, lambda: solver.step(1), solver.snapshot):
            with expect_error(
                SnapshotError, code=ErrorCode.IN_USE, mentions=[str(other_run.pid)]
            ) as caught:
                train()
            assert caught.value.details["field"] == "snapshot_prefix"
        assert solver.iter == 0
        with expect_error(SnapshotError, code=ErrorCode.IN_USE):
            solver.snapshot(tmp_path / "s")

    assert contents(tmp_path) == before


def test_another_prefix_in_the_folder_is_free(solver_file, other_run, tmp_path):
    with Solver(solver_file, device="numpy") as solver:
        solver.param.snapshot_prefix = str(tmp_path / "s2")
        solver.step(1)
        solver.snapshot(tmp_path / "explicit")

    assert (tmp_path / "s2_iter_1.solverstate").exists()
    assert not lock_path(str(tmp_path / "explicit")).exists()


def test_a_state_can_be_read_while_its_run_trains(solver_file, other_run, tmp_path):
    with Solver(solver_file, device="numpy", keep_last=1) as solver:
        solver.restore(tmp_path / "s_iter_1.solverstate")

        assert solver.iter == 1


def test_the_lock_ends_with_the_process_that_has_it(solver_file, other_run, tmp_path):
    other_run.kill()
    other_run.wait()
    assert lock_path(str(tmp_path / "s")).exists()

    with Solver(solver_file, device="numpy") as solver:
        solver.step(1)

        assert str(os.getpid()) in lock_path(str(tmp_path / "s")).read_text()

    assert not lock_path(str(tmp_path / "s")).exists()


def test_the_lock_ends_with_the_solver(solver_file, tmp_path):
    for end in (Solver.close, lambda solver: None):
        solver = Solver(solver_file, device="numpy")
        solver.step(1)
        assert lock_path(str(tmp_path / "s")).exists()
        end(solver)
        del solver
        gc.collect()
        assert not lock_path(str(tmp_path / "s")).exists()


@needs("fork")
def test_a_forked_child_does_not_have_the_lock_nor_end_it(tmp_path):
    prefix = str(tmp_path / "s")
    with started(FORKED, prefix) as (parent, line):
        assert line == "child 7\n"
        assert lock_path(prefix).exists()
        with expect_error(SnapshotError, code=ErrorCode.IN_USE, mentions=str(parent.pid)):
            PrefixLock().take(prefix)


def test_two_solvers_of_a_process_are_reported(solver_file, caplog):
    caplog.set_level(logging.WARNING, "demitasse")
    with Solver(solver_file, device="numpy") as one, Solver(solver_file, device="numpy") as two:
        one.step(1)
        assert not caplog.records
        two.step(1)

        assert "Another solver of this process" in caplog.text


def test_files_of_two_runs_are_never_restored_together(solver_file, tmp_path):
    """The other run writes its weights between the renames of a snapshot's two files."""
    from demitasse.training.checkpoint import snapshot

    with (
        Solver(solver_file, device="numpy") as one,
        Solver(solver_file, seed=4, device="numpy") as two,
    ):
        one.step(1)
        two.step(1)
        write = snapshot.write_state

        def meanwhile(path, state, *, hdf5):
            two.net.save(path.with_suffix(".caffemodel"))
            write(path, state, hdf5=hdf5)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshot, "write_state", meanwhile)
            one.snapshot()

        with expect_error(SnapshotError, code=ErrorCode.INCOMPATIBLE):
            two.restore(tmp_path / "s_iter_1.solverstate")


def test_weights_that_are_replaced_during_a_restore_are_noticed(solver_file, tmp_path):
    from demitasse.training.checkpoint import checkpointer

    with (
        Solver(solver_file, device="numpy") as one,
        Solver(solver_file, seed=4, device="numpy") as two,
    ):
        one.step(1)
        check = checkpointer.check_compatible

        def meanwhile(*arguments, **options):
            check(*arguments, **options)
            two.net.save(tmp_path / "s_iter_1.caffemodel")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpointer, "check_compatible", meanwhile)
            with expect_error(SnapshotError, code=ErrorCode.CORRUPT):
                one.restore(tmp_path / "s_iter_1.solverstate")
        with expect_error(SnapshotError, code=ErrorCode.BAD_STATE):
            one.step(1)


@pytest.mark.parametrize("fmt", ["BINARYPROTO", "HDF5"])
def test_the_digest_is_that_of_the_file(fields, tmp_path, fmt):
    if fmt == "HDF5":
        pytest.importorskip("h5py")
    from demitasse.core.hashing import sha256
    from demitasse.training import read_state

    with Solver(fields(f"snapshot_format: {fmt}"), device="numpy") as solver:
        solver.step(1)
        weights, state = solver.snapshot(tmp_path / "s")

    expected = sha256(weights.read_bytes()).digest()
    assert read_state(state).resume.run.weights == expected


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS])
def test_without_locks_a_warning_says_so(solver_file, number, caplog, monkeypatch, tmp_path):
    def refuse(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(prefix_lock, "_lock", refuse)
    with Solver(solver_file, device="numpy") as solver:
        solver.step(2)

    assert caplog.text.count("cannot be locked") == 1
    assert (tmp_path / "s_iter_2.solverstate").exists()


@pytest.mark.parametrize("kind", ["file", pytest.param("link", marks=needs("links")), "folder"])
def test_a_file_of_the_user_by_that_name_stays(solver_file, kind, tmp_path, caplog):
    path, target = lock_path(str(tmp_path / "s")), tmp_path / "target"
    target.write_text("mine")
    if kind == "file":
        path.write_text("mine")
    elif kind == "link":
        path.symlink_to(target)
    else:
        path.mkdir()
    with Solver(solver_file, device="numpy") as solver:
        solver.step(1)

    assert "cannot be locked" in caplog.text
    assert target.read_text() == "mine"
    assert path.is_dir() or path.read_text() == "mine"


@needs("deletion of open files")
def test_a_lock_file_that_was_deleted_is_no_obstacle(solver_file, tmp_path):
    with Solver(solver_file, device="numpy") as solver:
        solver.step(1)
        lock_path(str(tmp_path / "s")).unlink()
        solver.step(1)
    shutil.rmtree(tmp_path)


def test_names_in_any_script_have_locks(tmp_path):
    lock = PrefixLock()
    for name in ("ё" * 120, "", "a/", ".", "-", "x" * 250):
        (tmp_path / "a").mkdir(exist_ok=True)
        lock.take(f"{tmp_path}/{name}")
    lock.free()
    assert not list(tmp_path.rglob(".*.lock"))
