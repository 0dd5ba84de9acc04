"""Snapshots: names, contents, refusals, and that a failed write or restore changes nothing."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from expect_error import expect_error
from goldens import GOLDENS
from needs import NO_SUCH_FILE, needs

from demitasse import Solver
from demitasse.core.atomic import atomic_write
from demitasse.errors import (
    ConfigError,
    ErrorCode,
    NetError,
    ShapeError,
    SnapshotError,
    WeightsError,
)
from demitasse.io.proto import NetParameter, SolverState, floats, read_binary, write_binary
from demitasse.io.weights.hdf5 import is_hdf5
from demitasse.training import read_state
from demitasse.training.checkpoint import retention
from demitasse.training.checkpoint.snapshot import check_folder, write_snapshot

FORMATS = ["binary", "hdf5"]
OPTIONS = {"device", "dtype", "seed", "on_nonfinite"}


def made(fields, folder, fmt="binary", **options):
    if fmt == "hdf5":
        pytest.importorskip("h5py")
    text = "snapshot_format: HDF5" if fmt == "hdf5" else ""
    values = {k: options.pop(k) for k in list(options) if k not in OPTIONS}
    return Solver(fields(text, snapshot_prefix=str(folder / "s"), **values), **options)


def everything(solver):
    """What a restore may change."""
    return {
        "iter": solver.iter,
        "step": solver.current_step,
        "history": [a.tolist() for a in solver.history.arrays()],
        "params": [b.cpu_data().tolist() for b in solver.net.learnable_params],
        "passes": solver.net.passes,
        "seed": solver.net.seed,
        "loss": solver.smoothed_loss,
        "data": solver.net.layers[0].state(),
    }


# -- what is written ---------------------------------------------------------------------------


def test_files_have_caffes_names(fields, tmp_path, lines):
    solver = made(fields, tmp_path)
    solver.step(3)

    weights, state = solver.snapshot()

    assert weights == tmp_path / "s_iter_3.caffemodel"
    assert state == tmp_path / "s_iter_3.solverstate"
    assert lines()[-2:] == [
        f"Snapshotting to binary proto file {weights}",
        f"Snapshotting solver state to binary proto file {state}",
    ]
    assert sorted(tmp_path.iterdir()) == [weights, state]


def test_hdf5_files_have_caffes_names(fields, tmp_path, lines):
    solver = made(fields, tmp_path, "hdf5")
    solver.step(3)

    weights, state = solver.snapshot()

    assert weights == tmp_path / "s_iter_3.caffemodel.h5"
    assert state == tmp_path / "s_iter_3.solverstate.h5"
    assert lines()[-2] == f"Snapshotting to HDF5 file {weights}"
    assert is_hdf5(weights)
    assert is_hdf5(state)


def test_a_snapshot_is_due_every_so_many_iterations(fields, tmp_path):
    solver = made(fields, tmp_path, snapshot=3, snapshot_after_train=True)

    solver.solve()

    states = sorted(f.name for f in tmp_path.glob("*.solverstate"))
    assert states == ["s_iter_3.solverstate", "s_iter_6.solverstate", "s_iter_8.solverstate"]


def test_no_second_snapshot_when_the_last_iteration_has_one(fields, tmp_path):
    solver = made(fields, tmp_path, snapshot=4, snapshot_after_train=True)
    calls = []
    solver.snapshot = lambda: calls.append(solver.iter)

    solver.solve()

    assert calls == [4, 8]


def test_a_state_holds_what_caffe_reads(fields, tmp_path):
    solver = made(fields, tmp_path, type="Adam")
    solver.step(2)

    weights, file = solver.snapshot()

    state = read_binary(file, SolverState)
    assert (state.iter, state.learned_net) == (2, str(weights))
    shapes = [b.shape for b in solver.net.learnable_params]
    assert [tuple(h.shape.dim) for h in state.history] == shapes * 2
    for blob, array in zip(state.history, solver.history.arrays(), strict=True):
        np.testing.assert_array_equal(floats(blob), array.reshape(-1))


def test_an_hdf5_state_is_laid_out_as_caffes(fields, tmp_path):
    h5py = pytest.importorskip("h5py")
    solver = made(fields, tmp_path, "hdf5")
    solver.step(2)

    _, file = solver.snapshot()

    theirs = h5py.File(GOLDENS / "solvers" / "hdf5_snapshot_iter_6.solverstate.h5")
    with h5py.File(file) as ours, theirs:
        for name in ("iter", "current_step", "learned_net"):
            kinds = [f[name].id.get_type() for f in (ours, theirs)]
            assert kinds[0].get_class() == kinds[1].get_class()
            assert ours[name].shape == theirs[name].shape
        text = ours["learned_net"].id.get_type()
        assert text.get_strpad() == theirs["learned_net"].id.get_type().get_strpad()
        assert text.get_size() == len(ours["learned_net"][()]) + 1  # Caffe reads to the zero byte
        assert sorted(ours["history"]) == ["0", "1", "2", "3"]


def test_gradients_are_stored_on_request(fields, tmp_path):
    solver = made(fields, tmp_path, snapshot_diff=True)
    solver.step(1)

    weights, _ = solver.snapshot()

    net = read_binary(weights, NetParameter)
    [layer] = [layer for layer in net.layer if layer.name == "ip1"]
    np.testing.assert_array_equal(
        floats(layer.blobs[0], diff=True), solver.net.params["ip1"][0].diff.reshape(-1)
    )


def test_double_precision_is_kept(fields, tmp_path):
    solver = made(fields, tmp_path, dtype="float64")
    solver.step(2)
    _, file = solver.snapshot()
    other = made(fields, tmp_path, dtype="float64")

    other.restore(file)

    assert everything(other) == everything(solver)


@needs("names of any bytes")
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_prefix_that_is_no_utf8_is_refused(fields, tmp_path, fmt):
    solver = made(fields, tmp_path, fmt)

    with expect_error(SnapshotError, ErrorCode.UNWRITABLE):
        solver.snapshot(tmp_path / os.fsdecode(b"caf\xe9"))


def test_another_prefix_can_be_given(fields, tmp_path):
    weights, _ = made(fields, tmp_path).snapshot(tmp_path / "best")

    assert weights == tmp_path / "best_iter_0.caffemodel"


# -- what is read ------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_restored_solver_is_the_one_that_was_saved(fields, tmp_path, fmt, backend):
    solver = made(fields, tmp_path, fmt, device=backend, average_loss=3)
    solver.step(4)
    _, file = solver.snapshot()
    other = made(fields, tmp_path, fmt, device=backend, average_loss=3, random_seed=99)

    other.restore(file)

    assert everything(other) == everything(solver)


def test_the_multistep_step_is_kept(fields, tmp_path):
    text = {"lr_policy": "multistep", "gamma": 0.5}
    solver = made(fields, tmp_path, **text)
    solver.param.stepvalue.extend([1, 2])
    solver.step(3)
    _, file = solver.snapshot()
    other = made(fields, tmp_path, **text)

    other.restore(file)

    assert other.current_step == solver.current_step == 2


def test_a_state_of_a_single_precision_run_continues_in_double(fields, tmp_path):
    solver = made(fields, tmp_path)
    solver.step(2)
    _, file = solver.snapshot()
    other = made(fields, tmp_path, dtype="float64")

    other.restore(file)

    np.testing.assert_array_equal(other.history.arrays()[0], solver.history.arrays()[0])


def test_weights_are_found_beside_the_state(fields, tmp_path):
    solver = made(fields, tmp_path)
    solver.step(2)
    files = solver.snapshot()
    moved = tmp_path / "moved"
    moved.mkdir()
    state = [shutil.move(file, moved) for file in files][1]
    other = made(fields, tmp_path)

    other.restore(state)

    assert everything(other) == everything(solver)


def test_an_hdf5_state_of_caffe_may_name_a_folder_that_is_no_utf8(fields, tmp_path):
    h5py = pytest.importorskip("h5py")
    solver = made(fields, tmp_path, "hdf5")
    solver.step(2)
    weights, state = solver.snapshot()
    with h5py.File(state, "r+") as file:
        del file["learned_net"]
        file["learned_net"] = np.bytes_(b"/caf\xe9/" + weights.name.encode())

    assert read_state(state).learned_net == f"/caf\\xe9/{weights.name}"
    other = made(fields, tmp_path, "hdf5")
    other.restore(state)

    assert everything(other) == everything(solver)


def test_a_copy_of_a_run_is_restored_from_its_own_files(fields, tmp_path):
    solver = made(fields, tmp_path)
    solver.step(2)
    files = solver.snapshot()
    copied = tmp_path / "copied"
    copied.mkdir()
    state = [shutil.copy(file, copied) for file in files][1]
    other = made(fields, tmp_path, seed=9)
    other.step(2)
    assert other.snapshot() == files  # another run, in place of the first

    other.restore(state)

    assert everything(other) == everything(solver)
    assert retention.latest_snapshot(str(copied / "s")) == Path(state)


def test_a_state_is_read_by_the_name_of_its_file(fields, tmp_path):
    weights, state = Solver(fields(snapshot_prefix=f"{tmp_path}/s")).snapshot()

    assert read_state(str(state)).learned_net == str(weights)
    with expect_error(SnapshotError, ErrorCode.INVALID, mentions=state.name):
        read_state(str(weights))


def test_the_newest_snapshot_of_a_prefix_that_is_a_folder_is_found(fields, tmp_path):
    prefix = f"{tmp_path}/"
    _, state = Solver(fields(snapshot_prefix=prefix)).snapshot()

    assert retention.latest_snapshot(prefix) == state


def test_weights_that_are_gone_are_named(fields, tmp_path):
    solver = made(fields, tmp_path)
    weights, file = solver.snapshot()
    weights.unlink()

    with expect_error(SnapshotError, ErrorCode.NOT_FOUND, file=str(weights)):
        solver.restore(file)


def test_a_state_without_weights_leaves_them(fields, tmp_path):
    solver = made(fields, tmp_path)
    solver.step(2)
    _, file = solver.snapshot()
    state = read_binary(file, SolverState)
    state.ClearField("learned_net")
    write_binary(file, state)
    other = made(fields, tmp_path, random_seed=5)
    before = other.net.params["ip1"][0].data.copy()

    other.restore(file)

    np.testing.assert_array_equal(other.net.params["ip1"][0].data, before)
    assert other.iter == 2


def test_a_state_without_positions_starts_at_the_first_record(fields, tmp_path):
    solver = made(fields, tmp_path)
    _, file = solver.snapshot()
    state = read_binary(file, SolverState)
    state.ClearField("resume")
    write_binary(file, state)
    solver.step(3)

    solver.restore(file)

    assert solver.net.layers[0].state() == made(fields, tmp_path).net.layers[0].state()
    assert solver.net.passes == 0


def test_old_states_with_four_axes_fit(fields, tmp_path):
    solver = made(fields, tmp_path)
    solver.step(2)
    _, file = solver.snapshot()
    state = read_binary(file, SolverState)
    for blob in state.history:
        blob.num, blob.channels, blob.height, blob.width = [1] * (4 - len(blob.shape.dim)) + list(
            blob.shape.dim
        )
        blob.ClearField("shape")
    write_binary(file, state)
    other = made(fields, tmp_path)

    other.restore(file)

    assert everything(other) == everything(solver)


# -- what is refused, and that nothing has changed then -----------------------------------------


def refused(solver, file, code, mentions=(), error=SnapshotError, force=False, **details):
    before = everything(solver)
    with expect_error(error, code, mentions=mentions, **details):
        solver.restore(file, force=force)
    assert everything(solver) == before


def saved(fields, folder, fmt="binary", **values):
    solver = made(fields, folder, fmt, **values)
    solver.step(2)
    return solver.snapshot()


def test_a_missing_state_is_refused(fields, tmp_path):
    refused(made(fields, tmp_path), tmp_path / "none.solverstate", None, NO_SUCH_FILE)


@pytest.mark.parametrize("fmt", FORMATS)
def test_weights_given_by_mistake_are_told_from_a_state(fields, tmp_path, fmt):
    weights, state = saved(fields, tmp_path, fmt)

    refused(made(fields, tmp_path), weights, ErrorCode.INVALID, str(state))


def test_something_else_is_no_state(fields, tmp_path):
    file = tmp_path / "x.solverstate"
    file.write_bytes(b"\x12\x03abc")

    refused(made(fields, tmp_path), file, ErrorCode.INVALID, field="iter")


def test_another_hdf5_file_is_no_state(fields, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["something"] = 1

    refused(made(fields, tmp_path), tmp_path / "x.h5", ErrorCode.INVALID, "'history'")


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_state_that_is_cut_short_is_refused(fields, tmp_path, fmt):
    _, state = saved(fields, tmp_path, fmt)
    state.write_bytes(state.read_bytes()[:-40])

    refused(made(fields, tmp_path), state, None, "solverstate")


def test_the_state_of_another_type_of_solver_is_refused(fields, tmp_path):
    _, state = saved(fields, tmp_path, type="Adam")

    refused(made(fields, tmp_path), state, ErrorCode.COUNT_MISMATCH, got=8, expected=4)


def test_the_state_of_another_net_is_refused(fields, tmp_path):
    _, file = saved(fields, tmp_path)
    state = read_binary(file, SolverState)
    state.history[2].shape.dim[:] = [5, 3]
    write_binary(file, state)

    name = "parameter 0 of layer 'ip2'"
    code, solver = ErrorCode.SHAPE_MISMATCH, made(fields, tmp_path)
    refused(solver, file, code, param=name, got=(5, 3), expected=(3, 5))


def test_a_history_with_too_few_values_is_refused(fields, tmp_path):
    _, file = saved(fields, tmp_path)
    state = read_binary(file, SolverState)
    del state.history[1].data[2:]
    write_binary(file, state)

    code, solver = ErrorCode.SHAPE_MISMATCH, made(fields, tmp_path)
    refused(solver, file, code, history=1, got=2, expected=(5,))


def test_negative_counts_are_refused(fields, tmp_path):
    _, file = saved(fields, tmp_path)
    state = read_binary(file, SolverState)
    state.resume.net[0].passes = -1
    write_binary(file, state)

    refused(made(fields, tmp_path), file, ErrorCode.CORRUPT, net="train")


def test_a_state_whose_weights_are_damaged_changes_nothing(fields, tmp_path):
    weights, state = saved(fields, tmp_path)
    weights.write_bytes(weights.read_bytes()[:-5])

    refused(made(fields, tmp_path), state, ErrorCode.INCOMPATIBLE, differences=["weights"])
    solver, name = made(fields, tmp_path), "s_iter_2.caffemodel"
    refused(solver, state, None, name, WeightsError, force=True)


def test_a_state_whose_weights_do_not_fit_changes_nothing(fields, tmp_path):
    weights, state = saved(fields, tmp_path)
    net = read_binary(weights, NetParameter)
    [layer] = [layer for layer in net.layer if layer.name == "ip2"]
    layer.blobs[0].shape.dim[:] = [5, 3]
    write_binary(weights, net)

    refused(made(fields, tmp_path), state, ErrorCode.INCOMPATIBLE, differences=["weights"])
    refused(made(fields, tmp_path), state, None, "ip2", ShapeError, force=True)


def test_hdf5_without_h5py_says_what_to_install(fields, tmp_path, monkeypatch):
    weights, state = saved(fields, tmp_path, "hdf5")
    solver = made(fields, tmp_path, "hdf5")
    monkeypatch.setitem(sys.modules, "h5py", None)

    install = "pip install 'demitasse[hdf5]'"
    with expect_error(SnapshotError, mentions=install):
        solver.restore(state)
    with expect_error(SnapshotError, mentions=install):
        solver.snapshot()
    assert weights.is_file()


# -- where nothing can be written ----------------------------------------------------------------


def test_snapshots_need_a_prefix(fields):
    with expect_error(ConfigError, ErrorCode.MISSING, field="snapshot_prefix"):
        Solver(fields(snapshot=5))


@pytest.mark.parametrize("place", ["nowhere/s", "file/s"])
def test_a_folder_that_cannot_be_written_to_is_refused_before_training(fields, tmp_path, place):
    (tmp_path / "file").touch()

    with expect_error(SnapshotError, ErrorCode.UNWRITABLE, field="snapshot_prefix"):
        Solver(fields(snapshot=5, snapshot_prefix=str(tmp_path / place)))


def test_the_folder_of_the_last_snapshot_is_looked_at_before_training(fields, tmp_path):
    prefix = str(tmp_path / "nowhere" / "s")
    solver = Solver(fields(snapshot_after_train=True, snapshot_prefix=prefix))

    with expect_error(SnapshotError, ErrorCode.UNWRITABLE, field="snapshot_prefix"):
        solver.solve()

    assert solver.iter == 0


@pytest.mark.parametrize("name", ["ip1", "ip1/0"])
def test_layers_that_snapshots_cannot_keep_apart_are_refused_early(fields, tmp_path, name):
    def twice(**values):
        param = fields("snapshot_format: HDF5", snapshot_prefix=str(tmp_path / "s"), **values)
        param.net_param.layer[3].name = name
        return param

    with expect_error(WeightsError, mentions=repr(name)):
        Solver(twice(snapshot=5))
    last = Solver(twice(snapshot_after_train=True))
    with expect_error(WeightsError, mentions=repr(name)):
        last.solve()
    assert last.iter == 0


def test_the_probe_leaves_nothing_behind(fields, tmp_path):
    made(fields, tmp_path, snapshot=5)

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_full_disk_leaves_the_old_snapshot_whole(fields, tmp_path, fmt, monkeypatch):
    solver = made(fields, tmp_path, fmt)
    solver.step(2)
    old = {file: file.read_bytes() for file in solver.snapshot()}
    solver.net.params["ip1"][0].data[...] = 0

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    reason = ["s_iter_2.caffemodel", "No space left on device"]
    with expect_error(SnapshotError, ErrorCode.UNWRITABLE, mentions=reason):
        solver.snapshot()

    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == old


CRAMPED = """
import resource, sys
from demitasse import Solver
from demitasse.errors import SnapshotError
solver = Solver(sys.argv[1])
solver.step(2)
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
try:
    solver.snapshot()
except SnapshotError as error:
    print(error)
"""


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_limit_on_file_sizes_leaves_the_old_snapshot_whole(fields, tmp_path, fmt):
    """The operating system itself refuses to write."""
    resource = pytest.importorskip("resource")
    from demitasse.io.proto import write_text

    solver = made(fields, tmp_path, fmt)
    solver.step(2)
    files = {file: file.read_bytes() for file in solver.snapshot()}
    script = tmp_path / "solver.prototxt"
    write_text(script, solver.param)
    files[script] = script.read_bytes()

    done = subprocess.run(
        [sys.executable, "-c", CRAMPED, script], capture_output=True, text=True, check=True
    )

    assert "cannot be written: File too large" in done.stdout
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == files
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def poisoned(fields, folder, **options):
    """A solver whose loss is finite in spite of its weights: the ReLU hides them on ``cpu``."""
    relu = 'layer { name: "relu" type: "ReLU" bottom: "ip1" top: "ip1" }'
    net = str(fields().net_param).replace(
        'layer {\n  name: "drop"', f'{relu} layer {{ name: "drop"'
    )
    solver = Solver(fields(net=net, snapshot_prefix=str(folder / "s")), device="cpu", **options)
    solver.net.params["ip1"][0].data[0, 0] = np.nan
    return solver


def test_weights_that_are_not_finite_are_warned_of_when_they_are_written(fields, tmp_path, lines):
    solver = poisoned(fields, tmp_path)

    weights, _ = solver.snapshot()

    assert weights.exists()
    [line] = [line for line in lines() if "NaN or infinite" in line]
    assert "parameter 0 of layer 'ip1' (InnerProduct)" in line


def test_weights_that_are_not_finite_are_not_written_by_a_run_that_stops_for_them(fields, tmp_path):
    solver = poisoned(fields, tmp_path, on_nonfinite="raise")

    with expect_error(NetError, ErrorCode.NOT_FINITE, mentions="parameter 0 of layer 'ip1'"):
        solver.snapshot()

    assert list(tmp_path.iterdir()) == []


def test_large_weights_are_finite(fields, tmp_path):
    solver = made(fields, tmp_path, on_nonfinite="raise")
    solver.net.params["ip1"][0].data[...] = 3e38

    weights, _ = solver.snapshot()

    assert weights.exists()


def test_a_failed_snapshot_does_not_harm_the_run(fields, tmp_path):
    solver = made(fields, tmp_path)
    other = made(fields, tmp_path)
    solver.step(2)

    with pytest.raises(SnapshotError):
        solver.snapshot(tmp_path / "nowhere" / "s")
    solver.step(2)
    other.step(4)

    assert everything(solver) == everything(other)


# -- Caffe's own ---------------------------------------------------------------------------------


@pytest.mark.parametrize("iteration", [6, 12])
@pytest.mark.parametrize("name", ["sgd_momentum_l2", "adam", "adadelta", "lr_multistep"])
def test_caffes_states_are_read(name, iteration):
    state = read_state(GOLDENS / "solvers" / f"{name}_iter_{iteration}.solverstate")

    assert state.iter == iteration
    assert state.learned_net == f"{name}_iter_{iteration}.caffemodel"
    assert len(state.history) == (8 if name in {"adam", "adadelta"} else 4)
    assert state.resume is None
    assert state.current_step == (
        3 if name == "lr_multistep" and iteration == 12 else 2 if name == "lr_multistep" else 0
    )


def test_caffes_hdf5_states_are_read():
    pytest.importorskip("h5py")

    state = read_state(GOLDENS / "solvers" / "hdf5_snapshot_iter_6.solverstate.h5")

    assert (state.iter, state.learned_net) == (6, "hdf5_snapshot_iter_6.caffemodel.h5")
    assert [a.shape for a in state.history] == [(4, 1, 3, 3), (4,), (5, 36), (5,)]


# -- a snapshot on the way that fails --------------------------------------------------------------


def test_a_run_goes_on_without_a_snapshot_that_cannot_be_written(
    fields, tmp_path, monkeypatch, lines
):
    solver = made(fields, tmp_path, snapshot=2, max_iter=6)
    tried = []

    def full_at_first(run, iteration, *rest):
        tried.append(iteration)
        if iteration < 6:
            raise SnapshotError("No space left on device")
        return write_snapshot(run, iteration, *rest)

    monkeypatch.setattr(retention, "write_snapshot", full_at_first)

    solver.solve()

    assert tried == [2, 4, 6]
    assert any("Iteration 2: No space left on device" in line for line in lines())


def test_a_run_whose_last_snapshot_cannot_be_written_fails(fields, tmp_path, monkeypatch):
    solver = made(fields, tmp_path, snapshot=2, max_iter=4)

    def full(*_):
        raise SnapshotError("No space left on device")

    monkeypatch.setattr(retention, "write_snapshot", full)

    with expect_error(SnapshotError, mentions="No space left"):
        solver.solve()
    assert solver.iter == 4


def test_no_file_of_the_user_is_deleted_to_see_whether_there_is_room(fields, tmp_path):
    kept = tmp_path / "s_iter_0.tempfile"
    kept.write_text("mine")

    check_folder(str(tmp_path / "s"))

    assert [path.name for path in tmp_path.iterdir()] == [kept.name]


@needs("links")
def test_links_that_lead_in_a_circle_are_an_error_of_the_system(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    with expect_error(OSError, mentions=os.strerror(errno.ELOOP)), atomic_write(tmp_path / "a"):
        pass
