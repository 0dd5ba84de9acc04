"""Only the last snapshots of a run are kept, where that is asked for."""

from types import SimpleNamespace

import pytest
from expect_error import expect_error

from demitasse import Solver
from demitasse.errors import ConfigError, ErrorCode, SnapshotError


@pytest.fixture
def made(fields, tmp_path):
    """Make solvers that write a snapshot in every iteration."""

    def make(keep_last=2, *, text="", prefix="s", **values):
        param = fields(text, snapshot=1, snapshot_prefix=str(tmp_path / prefix), **values)
        return Solver(param, keep_last=keep_last)

    return make


def iterations(folder, prefix="s"):
    """Return the iterations of which both files are there, and that there are no others."""
    states = {p.name.split("_iter_")[1].split(".")[0] for p in folder.glob(f"{prefix}_*state*")}
    weights = {p.name.split("_iter_")[1].split(".")[0] for p in folder.glob(f"{prefix}_*model*")}
    assert states == weights
    return sorted(map(int, states))


@pytest.mark.parametrize("fmt", ["BINARYPROTO", "HDF5"])
def test_older_snapshots_are_deleted(made, tmp_path, fmt):
    if fmt == "HDF5":
        pytest.importorskip("h5py")
    made(text=f"snapshot_format: {fmt}").step(5)

    assert iterations(tmp_path) == [4, 5]


def test_by_default_all_are_kept(made, tmp_path):
    made(None).step(3)

    assert iterations(tmp_path) == [1, 2, 3]


def test_a_resumed_run_deletes_those_of_the_run_before(made, tmp_path):
    made(3).step(5)

    second = made(3)
    second.restore(tmp_path / "s_iter_5.solverstate")
    second.step(2)

    assert iterations(tmp_path) == [5, 6, 7]


def test_other_runs_and_other_files_are_left_alone(made, tmp_path):
    made(None).step(2)
    (tmp_path / "s_iter_0.txt").write_text("mine")
    second = made(1)

    second.snapshot(tmp_path / "other")
    second.step(3)

    assert (tmp_path / "s_iter_0.txt").exists()
    assert (tmp_path / "other_iter_0.caffemodel").exists()
    assert iterations(tmp_path) == [3]  # 1 and 2 were written again


def test_a_state_from_elsewhere_says_nothing_of_files_here(made, tmp_path):
    (tmp_path / "old").mkdir()
    first = made(2, prefix="old/s")
    first.step(2)
    made(None).step(1)
    second = made(1)

    second.restore(tmp_path / "old" / "s_iter_2.solverstate")
    second.step(2)

    assert iterations(tmp_path / "old") == [1, 2]
    assert iterations(tmp_path) == [1, 4]


def test_nothing_is_deleted_when_the_new_one_cannot_be_written(made, tmp_path, monkeypatch):
    solver = made(1)
    solver.step(1)

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("demitasse.training.checkpoint.snapshot.write_state", full)
    with expect_error(SnapshotError, mentions="No space left"):
        solver.step(1)
    monkeypatch.undo()

    assert (tmp_path / "s_iter_1.solverstate").exists()
    solver.snapshot()
    assert iterations(tmp_path) == [2]


def test_a_snapshot_that_is_gone_already_is_no_fault(made, tmp_path):
    solver = made(1)
    solver.step(1)
    (tmp_path / "s_iter_1.caffemodel").unlink()

    solver.step(1)

    assert iterations(tmp_path) == [2]


def test_keep_last_is_at_least_one(made):
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="keep_last", got=0):
        made(0)


def test_callbacks_are_told_of_snapshots_and_tests(made, tmp_path):
    solver, seen = made(text="test_iter: 1 test_iter: 2 test_interval: 2"), []
    solver.on_snapshot.append(lambda weights, state: seen.append((weights.name, state.name)))
    solver.on_test.append(lambda index, means: seen.append((index, sorted(means))))

    solver.step(2)

    outputs = ["accuracy", "loss"]
    assert seen == [
        (0, outputs), (1, outputs),
        ("s_iter_1.caffemodel", "s_iter_1.solverstate"),
        ("s_iter_2.caffemodel", "s_iter_2.solverstate"),
    ]  # fmt: skip


def test_callbacks_are_told_how_far_a_test_is(made):
    solver, seen = made(text="test_iter: 2 test_interval: 2"), []
    solver.on_test_batch.append(lambda *told: seen.append(told))

    solver.test()

    assert seen == [(0, 0, 2), (0, 1, 2), (0, 2, 2)]


def test_a_full_disk_is_told_of_before_training(made, monkeypatch, caplog):
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=1000))
    made()
    assert not [r for r in caplog.records if r.levelname == "WARNING"]

    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=100))
    made()

    assert "0.0 MB" in caplog.text
