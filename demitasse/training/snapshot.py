"""Snapshots of a training run: the weights, and the state to continue from.

Both files are Caffe's and are written atomically, the weights first, so that a state never names a
file that is not whole.

Source: Caffe, ``Solver::Snapshot`` and ``Solver::Restore`` in ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from demitasse.core.atomic import partial_name
from demitasse.core.axes import shape_string
from demitasse.core.log import get_logger
from demitasse.core.paths import is_file
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, SnapshotError
from demitasse.io.proto import SolverParameter
from demitasse.net import Net
from demitasse.training.checkpoint import Checkpoint
from demitasse.training.progress import check_progress
from demitasse.training.run_facts import file_digest
from demitasse.training.state_file import State, read_state, write_state

__all__ = [
    "check_folder",
    "check_prefix",
    "delete_snapshot",
    "read_checked",
    "snapshot_paths",
    "write_best",
    "write_snapshot",
]

log = get_logger(__name__)


def check_prefix(param: SolverParameter, best: bool = False) -> None:
    """Check before training that snapshots can be written.

    Args:
        param: The solver's fields.
        best: Whether the best weights are to be kept.

    Raises:
        ConfigError: Snapshots are asked for without a prefix.
        SnapshotError: The folder is not there, or cannot be written to.
    """
    if not param.snapshot and not best:
        return
    if not param.HasField("snapshot_prefix"):
        wish = "snapshot is given" if param.snapshot else "the best weights are to be kept"
        message = f"{wish}, but snapshot_prefix is not; say where snapshots are to go"
        raise ConfigError(message, code=ErrorCode.MISSING, field="snapshot_prefix")
    check_folder(param.snapshot_prefix)


def check_folder(prefix: str) -> None:
    """Check that files whose names begin with ``prefix`` can be written.

    Raises:
        SnapshotError: The folder is not there, or cannot be written to.
    """
    probe = partial_name(Path(f"{prefix}_iter_0"))
    try:
        try:
            probe.open("xb").close()
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        message = (
            f"cannot write to snapshot_prefix {prefix!r} ({error.strerror}); make "
            f"sure that the folder {os.fspath(probe.parent)!r} exists and can be written to"
        )
        raise SnapshotError(
            message, code=ErrorCode.UNWRITABLE, field="snapshot_prefix", got=prefix
        ) from error


def write_snapshot(checkpoint: Checkpoint, prefix: str) -> tuple[Path, Path]:
    """Write the weights and the state of a training run.

    Args:
        checkpoint: The run.
        prefix: How the names of the files begin.

    Returns:
        The weights file and the state file.

    Raises:
        SnapshotError: A file cannot be written; files of that name that were there are whole.
    """
    param = checkpoint.param
    weights, file = snapshot_paths(param, prefix, checkpoint.iter)
    state = State(
        checkpoint.iter,
        os.fspath(weights),
        checkpoint.current_step,
        checkpoint.history.arrays(),
        checkpoint.resume,
    )
    kind = "HDF5" if _is_hdf5(param) else "binary proto"
    log.info("Snapshotting to %s file %s", kind, weights)
    _save(param, checkpoint.net, weights)
    with _written(weights):
        checkpoint.resume.run.weights = file_digest(weights)
    log.info("Snapshotting solver state to %s file %s", kind, file)
    with _written(file):
        write_state(file, state, hdf5=_is_hdf5(param))
    return weights, file


def write_best(param: SolverParameter, net: Net, iteration: int, what: str) -> Path:
    """Write weights as the best so far, in place of those there were.

    Args:
        param: The solver's fields.
        net: The net that is trained.
        iteration: Updates made so far.
        what: What makes them the best, for the log.

    Returns:
        The weights file.

    Raises:
        SnapshotError: It cannot be written; the one that was there is whole.
    """
    path = Path(f"{param.snapshot_prefix}_best.caffemodel{_ending(param)}")
    log.info("Iteration %d, best so far: %s; snapshotting to %s", iteration, what, path)
    _save(param, net, path)
    return path


def snapshot_paths(param: SolverParameter, prefix: str, iteration: int) -> tuple[Path, Path]:
    """Return what the weights file and the state file of an iteration are called."""
    stem, ending = f"{prefix}_iter_{iteration}", _ending(param)
    return Path(f"{stem}.caffemodel{ending}"), Path(f"{stem}.solverstate{ending}")


def delete_snapshot(param: SolverParameter, prefix: str, iteration: int) -> None:
    """Delete the two files of an iteration, the state first: it never names what is not there."""
    for path in reversed(snapshot_paths(param, prefix, iteration)):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("The old snapshot %s cannot be deleted: %s", path, error.strerror)
            return
        log.info("Deleted the old snapshot %s", path)


def _is_hdf5(param: SolverParameter) -> bool:
    return bool(param.snapshot_format == SolverParameter.HDF5)


def _ending(param: SolverParameter) -> str:
    return ".h5" if _is_hdf5(param) else ""


def _save(param: SolverParameter, net: Net, path: Path) -> None:
    with _written(path):
        save = net.save_hdf5 if _is_hdf5(param) else net.save
        save(path, write_diff=param.snapshot_diff)


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Turn errors of writing into one that names the snapshot."""
    try:
        yield
    except OSError as error:
        message = f"the snapshot {path} cannot be written: {error.strerror or error}"
        raise SnapshotError(message, code=ErrorCode.UNWRITABLE, file=os.fspath(path)) from error
    except DemitasseError as error:
        message = f"the snapshot {path} cannot be written: {error}"
        raise SnapshotError(
            message, code=error.code or ErrorCode.UNWRITABLE, file=os.fspath(path)
        ) from error


def read_checked(path: Path, net: Net, sorts: int, kind: str) -> State:
    """Read a state to continue from, and check that it fits the solver.

    Args:
        path: The state file.
        net: The training net.
        sorts: How many arrays of history each learnable parameter has.
        kind: The solver's type, for messages.

    Returns:
        The state, with ``learned_net`` as the path of a file that is there, or empty.

    Raises:
        SnapshotError: The file cannot be read, or is the state of another solver or net.
    """
    state = read_state(path)
    place = os.fspath(path)
    params, names = net.learnable_params, _param_names(net)
    if len(state.history) != sorts * len(params):
        message = (
            f"the state has {len(state.history)} arrays of history, {kind} with "
            f"{len(params)} learnable parameters has {sorts * len(params)}; it is the state of "
            "another net or of another type of solver"
        )
        raise SnapshotError(
            message,
            code=ErrorCode.COUNT_MISMATCH,
            got=len(state.history),
            expected=sorts * len(params),
        ).at(place)
    for index, array in enumerate(state.history):
        blob, name = params[index % len(params)], names[index % len(params)]
        if _trimmed(array.shape) != _trimmed(blob.shape):
            message = (
                f"history {index}, of {name}, has shape {shape_string(array.shape)}; the "
                f"parameter has {shape_string(blob.shape)}: it is the state of another net"
            )
            raise SnapshotError(
                message,
                code=ErrorCode.SHAPE_MISMATCH,
                param=name,
                got=array.shape,
                expected=blob.shape,
            ).at(place)
        if not np.issubdtype(array.dtype, np.floating):
            message = f"history {index}, of {name}, holds {array.dtype}, no floats"
            raise SnapshotError(
                message, code=ErrorCode.DTYPE_MISMATCH, param=name, got=str(array.dtype)
            ).at(place)
    if state.iter < 0 or state.current_step < 0:
        message = f"iteration {state.iter}, step {state.current_step}: the state is damaged"
        raise SnapshotError(message, code=ErrorCode.CORRUPT).at(place)
    if state.resume is not None:
        check_progress(state.resume)
    return State(
        state.iter,
        _found(state.learned_net, path),
        state.current_step,
        state.history,
        state.resume,
    )


def _param_names(net: Net) -> list[str]:
    """Return what messages call each learnable parameter: by its owner."""
    return [
        f"parameter {record.index} of layer {net.layer_names[record.layer]!r}"
        for record in net.structure.learnable_records
    ]


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without leading ones: old states give every array four axes."""
    kept = list(shape)
    while kept and kept[0] == 1:
        kept.pop(0)
    return tuple(kept)


def _found(learned_net: str, state: Path) -> str:
    """Return where the weights of a state are: as written, else beside the state."""
    if not learned_net:
        return ""
    beside = state.parent / Path(learned_net.replace("\\", "/")).name
    for place in (Path(learned_net), beside):
        if is_file(place):
            return os.fspath(place)
    message = (
        f"its weights are neither at {learned_net!r} nor at {os.fspath(beside)!r}; "
        "put the file beside the state"
    )
    raise SnapshotError(message, code=ErrorCode.NOT_FOUND, file=learned_net).at(os.fspath(state))
