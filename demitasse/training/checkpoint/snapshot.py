"""Snapshots of a training run: the weights, and the state to resume from.

Both files are Caffe's and are written atomically, the weights first: a state never names an
incomplete file.

Source: Caffe, ``Solver::Snapshot`` and ``Solver::Restore`` in ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse.core.atomic import partial_name
from demitasse.core.axes import shape_string
from demitasse.core.hashing import sha256
from demitasse.core.log import get_logger
from demitasse.core.paths import is_file
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, SnapshotError
from demitasse.io.proto import ResumeState, SolverParameter
from demitasse.io.weights.hdf5 import write_hdf5_weights
from demitasse.io.weights.save import save_caffemodel
from demitasse.net import Net
from demitasse.training.checkpoint.layer_state import LARGEST_COUNT
from demitasse.training.checkpoint.state_file import State, read_state, write_state
from demitasse.training.updater import History

log = get_logger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A training run between two iterations.

    Attributes:
        param: The solver's fields.
        net: The training net.
        history: History of each parameter.
        iter: Number of updates made.
        current_step: Steps of the learning-rate policy.
        resume: Data positions, passes, losses, ... that an exact resume needs besides.
    """

    param: SolverParameter
    net: Net
    history: History
    iter: int
    current_step: int
    resume: ResumeState


def check_prefix(param: SolverParameter, best: bool = False) -> None:
    """Check before training that snapshots can be written.

    Args:
        param: The solver's fields.
        best: Whether the best weights are kept.

    Raises:
        ConfigError: Snapshots are asked for without a prefix.
        SnapshotError: The folder does not exist, or cannot be written to.
    """
    if not param.snapshot and not best:
        return
    if not param.HasField("snapshot_prefix"):
        wanted = "snapshot" if param.snapshot else "keep_best"
        message = f"{wanted} needs snapshot_prefix; give the path that snapshots begin with"
        raise ConfigError(message, code=ErrorCode.MISSING, field="snapshot_prefix")
    check_folder(param.snapshot_prefix)


def check_folder(prefix: str) -> None:
    """Check that files whose names begin with ``prefix`` can be written.

    Raises:
        SnapshotError: The folder does not exist, or cannot be written to.
    """
    probe = partial_name(Path(f"{prefix}_iter_0"))
    try:
        try:
            probe.open("xb").close()
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        message = (
            f"cannot write to snapshot_prefix {prefix!r} ({error.strerror}); make sure that the "
            f"folder {os.fspath(probe.parent)!r} exists and is writable"
        )
        raise SnapshotError(
            message, code=ErrorCode.UNWRITABLE, field="snapshot_prefix", got=prefix
        ) from error


def write_snapshot(checkpoint: Checkpoint, prefix: str) -> tuple[Path, Path]:
    """Write the weights and the state of a training run.

    Args:
        checkpoint: The run.
        prefix: Beginning of the names of the files.

    Returns:
        The weights file and the state file.

    Raises:
        SnapshotError: A file cannot be written; old files of that name stay complete.
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
    checkpoint.resume.run.weights = _save(param, checkpoint.net, weights)
    log.info("Snapshotting solver state to %s file %s", kind, file)
    with _writing(file):
        write_state(file, state, hdf5=_is_hdf5(param))
    return weights, file


def write_best(param: SolverParameter, net: Net, iteration: int, metric: str) -> Path:
    """Write weights as the best so far, in place of the old best.

    Args:
        param: The solver's fields.
        net: The training net.
        iteration: Number of updates made so far.
        metric: Name and value of the metric, for the log.

    Returns:
        The weights file.

    Raises:
        SnapshotError: The file cannot be written; an old file stays complete.
    """
    path = Path(f"{param.snapshot_prefix}_best.caffemodel{_suffix(param)}")
    log.info("Iteration %d, best so far: %s; snapshotting to %s", iteration, metric, path)
    _save(param, net, path)
    return path


def snapshot_paths(param: SolverParameter, prefix: str, iteration: int) -> tuple[Path, Path]:
    """Return the names of the weights file and the state file of an iteration."""
    stem, suffix = f"{prefix}_iter_{iteration}", _suffix(param)
    return Path(f"{stem}.caffemodel{suffix}"), Path(f"{stem}.solverstate{suffix}")


def delete_snapshot(param: SolverParameter, prefix: str, iteration: int) -> None:
    """Delete the two files of an iteration, the state first: it never names a missing file."""
    for path in reversed(snapshot_paths(param, prefix, iteration)):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("The old snapshot %s cannot be deleted: %s", path, error.strerror)
            return
        log.info("Deleted the old snapshot %s", path)


def _is_hdf5(param: SolverParameter) -> bool:
    return bool(param.snapshot_format == SolverParameter.HDF5)


def _suffix(param: SolverParameter) -> str:
    return ".h5" if _is_hdf5(param) else ""


def _save(param: SolverParameter, net: Net, path: Path) -> bytes:
    """Write the weights of a net; return the SHA-256 of the bytes that were written."""
    hashed = sha256()
    with _writing(path), net.lock:
        save = write_hdf5_weights if _is_hdf5(param) else save_caffemodel
        save(net.structure, path, param.snapshot_diff, hashed)
    return hashed.digest()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Convert errors of writing into a SnapshotError that names the file."""
    try:
        yield
    except (OSError, DemitasseError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else error
        code, details = ErrorCode.UNWRITABLE, dict[str, object]()
        if isinstance(error, DemitasseError):
            code, details = error.code or code, error.details
        message = f"the snapshot {path} cannot be written: {reason}"
        details = {**details, "file": os.fspath(path)}
        raise SnapshotError(message, code=code, **details) from error


def read_checked(path: Path, net: Net, arrays_per_param: int, kind: str) -> State:
    """Read a state to resume from, and check that it fits the solver.

    Args:
        path: The state file.
        net: The training net.
        arrays_per_param: Number of history arrays of each learnable parameter.
        kind: The solver's type, for messages.

    Returns:
        The state, whose ``learned_net`` is the path of an existing file, or empty.

    Raises:
        SnapshotError: The file cannot be read, or is the state of another solver or net.
    """
    state = read_state(path)
    place = os.fspath(path)
    params, names = net.learnable_params, _param_names(net)
    expected = arrays_per_param * len(params)
    if len(state.history) != expected:
        message = (
            f"got {len(state.history)} history arrays, expected {expected} for {kind} with "
            f"{len(params)} learnable parameters; this is the state of another net or of another "
            "type of solver"
        )
        got = len(state.history)
        raise SnapshotError(message, code=ErrorCode.COUNT_MISMATCH, got=got, expected=expected).at(
            place
        )
    for index, array in enumerate(state.history):
        blob, name = params[index % len(params)], names[index % len(params)]
        if _trimmed(array.shape) != _trimmed(blob.shape):
            message = (
                f"history {index}, of {name}, has shape {shape_string(array.shape)}, and the "
                f"parameter has {shape_string(blob.shape)}; this is the state of another net"
            )
            details = {"param": name, "got": array.shape, "expected": blob.shape}
            raise SnapshotError(message, code=ErrorCode.SHAPE_MISMATCH, **details).at(place)
        if not np.issubdtype(array.dtype, np.floating):
            message = f"history {index}, of {name}, got dtype {array.dtype}, expected floats"
            details = {"param": name, "got": str(array.dtype)}
            raise SnapshotError(message, code=ErrorCode.DTYPE_MISMATCH, **details).at(place)
    if state.iter < 0 or state.current_step < 0:
        message = f"iteration {state.iter}, step {state.current_step}: the state is damaged"
        raise SnapshotError(message, code=ErrorCode.CORRUPT).at(place)
    if state.resume is not None:
        _check_counts(state.resume)
    return State(
        state.iter,
        _find_weights(state.learned_net, path),
        state.current_step,
        state.history,
        state.resume,
    )


def _check_counts(resume: ResumeState) -> None:
    """Check that counts are at least 0, and not larger than those of any run.

    Raises:
        SnapshotError: A count is impossible.
    """
    for net in resume.net:
        counts = [net.passes, *(c.value for layer in net.layer for c in layer.counter)]
        if not 0 <= min(counts) <= max(counts) <= LARGEST_COUNT:
            message = f"the state has an impossible count for the {net.net} net; it is damaged"
            raise SnapshotError(message, code=ErrorCode.CORRUPT, net=net.net)
    numbers = [*resume.snapshot, *(n for w in resume.watch for n in (w.iter, w.tests, w.event))]
    if min(numbers, default=0) < 0:
        message = "the state has a negative iteration; it is damaged"
        raise SnapshotError(message, code=ErrorCode.CORRUPT)


def _param_names(net: Net) -> list[str]:
    """Return the name of each learnable parameter in messages: by its owner."""
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


def _find_weights(learned_net: str, state: Path) -> str:
    """Return the path of a state's weights: as written, else beside the state."""
    if not learned_net:
        return ""
    beside = state.parent / Path(learned_net.replace("\\", "/")).name
    for place in (Path(learned_net), beside):
        if is_file(place):
            return os.fspath(place)
    message = (
        f"its weights are neither at {learned_net!r} nor at {os.fspath(beside)!r}; put the file "
        "beside the state"
    )
    raise SnapshotError(message, code=ErrorCode.NOT_FOUND, file=learned_net).at(os.fspath(state))
