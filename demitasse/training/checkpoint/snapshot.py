"""Snapshots of a training run: the weights, and the state to resume from.

Both files are Caffe's and are written atomically, the weights first: a state never names an
incomplete file.

Source: Caffe, ``Solver::Snapshot`` and ``Solver::Restore`` in ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from demitasse.core.atomic import partial_name
from demitasse.core.axes import shape_string
from demitasse.core.hashing import sha256
from demitasse.core.log import get_logger
from demitasse.core.paths import is_file
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, SnapshotError
from demitasse.io.proto import ResumeState, SolverParameter
from demitasse.io.weights.hdf5 import need_own_groups, write_hdf5_weights
from demitasse.io.weights.save import save_caffemodel
from demitasse.training.checkpoint.layer_state import LARGEST_COUNT
from demitasse.training.checkpoint.state_file import State, read_state, write_state

if TYPE_CHECKING:
    from demitasse.training.context import TrainingContext

log = get_logger(__name__)


def check_prefix(param: SolverParameter, best: bool = False) -> None:
    """Check before training that snapshots, or the best weights, can be written.

    A missing prefix raises a ConfigError, a folder that cannot be written to a SnapshotError.
    """
    if not param.snapshot and not best:
        return
    if not param.HasField("snapshot_prefix"):
        wanted = "snapshot" if param.snapshot else "keep_best"
        message = f"{wanted} needs snapshot_prefix; give the path that snapshots begin with"
        raise ConfigError(message, code=ErrorCode.MISSING, field="snapshot_prefix")
    check_folder(param.snapshot_prefix)


def check_folder(prefix: str) -> None:
    """Raise a SnapshotError unless files whose names begin with ``prefix`` can be written."""
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
        details = {"field": "snapshot_prefix", "got": prefix}
        raise SnapshotError(message, code=ErrorCode.UNWRITABLE, **details) from error


def check_names(run: TrainingContext) -> None:
    """Check before training that snapshots can keep the parameters of all layers apart."""
    if _is_hdf5(run.param):
        layers = run.net.structure.layers
        need_own_groups((layer.name, range(len(layer.blobs))) for layer in layers)


def write_snapshot(
    run: TrainingContext, iteration: int, step: int, resume: ResumeState, prefix: str
) -> tuple[Path, Path]:
    """Write the weights and the state of a run between two iterations; return both files.

    ``resume`` has data positions, passes, losses, ... that an exact resume needs besides. A file
    that cannot be written raises a SnapshotError; old files of that name stay complete.
    """
    weights, file = snapshot_paths(run.param, prefix, iteration)
    state = State(iteration, os.fspath(weights), step, run.updater.history.arrays(), resume)
    hdf5 = _is_hdf5(run.param)
    kind = "HDF5" if hdf5 else "binary proto"
    log.info("Snapshotting to %s file %s", kind, weights)
    resume.run.weights = _save(run, weights)
    log.info("Snapshotting solver state to %s file %s", kind, file)
    with _writing(file):
        write_state(file, state, hdf5=hdf5)
    return weights, file


def write_best(run: TrainingContext, iteration: int) -> Path:
    """Write weights as the best so far, in place of the old best; return the file."""
    path = Path(f"{run.param.snapshot_prefix}_best.caffemodel{_suffix(run.param)}")
    log.info("Iteration %d, best so far: %s; snapshotting to %s", iteration, run.monitor.best, path)
    _save(run, path)
    return path


def snapshot_paths(param: SolverParameter, prefix: str, iteration: int) -> tuple[Path, Path]:
    """Return the names of the weights file and the state file of an iteration."""
    stem, suffix = f"{prefix}_iter_{iteration}", _suffix(param)
    return Path(f"{stem}.caffemodel{suffix}"), Path(f"{stem}.solverstate{suffix}")


def _is_hdf5(param: SolverParameter) -> bool:
    return bool(param.snapshot_format == SolverParameter.HDF5)


def _suffix(param: SolverParameter) -> str:
    return ".h5" if _is_hdf5(param) else ""


def _save(run: TrainingContext, path: Path) -> bytes:
    """Write the weights of a run; return the SHA-256 of the bytes that were written."""
    hashed = sha256()
    with _writing(path), run.net.lock:
        save = write_hdf5_weights if _is_hdf5(run.param) else save_caffemodel
        save(run.net.structure, path, run.param.snapshot_diff, hashed)
    return hashed.digest()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Convert errors of writing into a SnapshotError that names the file."""
    try:
        yield
    except (OSError, DemitasseError, UnicodeEncodeError) as error:  # states store names in UTF-8
        reason = (error.strerror or error) if isinstance(error, OSError) else error
        code = error.code if isinstance(error, DemitasseError) else None
        details = error.details if isinstance(error, DemitasseError) else {}
        message = f"the snapshot {path} cannot be written: {reason}"
        details = {**details, "file": os.fspath(path)}
        raise SnapshotError(message, code=code or ErrorCode.UNWRITABLE, **details) from error


def read_checked(path: Path, run: TrainingContext) -> State:
    """Read a state to resume from; raise a SnapshotError unless it fits the solver.

    The ``learned_net`` of the state is the path of an existing file, or empty.
    """

    def fault(code: ErrorCode, message: str, **details: object) -> SnapshotError:
        return SnapshotError(message, code=code, **details).at(os.fspath(path))

    state = read_state(path)
    net, got = run.net, len(state.history)
    params, records = net.learnable_params, net.structure.learnable_records
    expected = len(run.updater.history)
    if got != expected:
        message = (
            f"got {got} history arrays, expected {expected} for {run.updater.rule.type} with "
            f"{len(params)} learnable parameters; this is the state of another net or of another "
            "type of solver"
        )
        raise fault(ErrorCode.COUNT_MISMATCH, message, got=got, expected=expected)
    for index, array in enumerate(state.history):
        blob, record = params[index % len(params)], records[index % len(params)]
        name = f"parameter {record.index} of layer {net.layer_names[record.layer]!r}"
        if _trimmed(array.shape) != _trimmed(blob.shape):
            message = (
                f"history {index}, of {name}, has shape {shape_string(array.shape)}, and the "
                f"parameter has {shape_string(blob.shape)}; this is the state of another net"
            )
            details = {"param": name, "got": array.shape, "expected": blob.shape}
            raise fault(ErrorCode.SHAPE_MISMATCH, message, **details)
        if not np.issubdtype(array.dtype, np.floating):
            message = f"history {index}, of {name}, got dtype {array.dtype}, expected floats"
            raise fault(ErrorCode.DTYPE_MISMATCH, message, param=name, got=str(array.dtype))
    if state.iter < 0 or state.current_step < 0:
        message = f"iteration {state.iter}, step {state.current_step}: the state is damaged"
        raise fault(ErrorCode.CORRUPT, message)
    if state.resume is not None:
        _check_counts(state.resume)
    if not state.learned_net:
        return state
    places = weights_places(path, state)
    for place in places:
        if is_file(place):
            return replace(state, learned_net=os.fspath(place))
    message = (
        f"its weights are neither at {os.fspath(places[0])!r} nor at {os.fspath(places[1])!r}; put "
        "the file beside the state"
    )
    raise fault(ErrorCode.NOT_FOUND, message, file=state.learned_net)


def weights_places(path: Path, state: State) -> tuple[Path, Path]:
    """Return where the weights of a state may be, the better place first.

    A copied state has its own weights beside it; Caffe's states, without a digest, name theirs.
    """
    named = Path(state.learned_net)
    beside = path.parent / Path(state.learned_net.replace("\\", "/")).name
    checked = state.resume is not None and state.resume.run.weights
    return (beside, named) if checked else (named, beside)


def _check_counts(resume: ResumeState) -> None:
    """Raise a SnapshotError for counts below 0, or larger than those of any run."""
    for net in resume.net:
        counts = [net.passes, *(c.value for layer in net.layer for c in layer.counter)]
        if not 0 <= min(counts) <= max(counts) <= LARGEST_COUNT:
            message = f"the state has an impossible count for the {net.net} net; it is damaged"
            raise SnapshotError(message, code=ErrorCode.CORRUPT, net=net.net)
    scale = resume.loss_scale
    if scale and not (len(scale) == 2 and 0 < scale[0] < math.inf and 0 <= scale[1] < math.inf):
        message = f"the state has an impossible loss scale, {list(scale)}; it is damaged"
        raise SnapshotError(message, code=ErrorCode.CORRUPT)
    numbers = [*resume.snapshot, *(n for w in resume.watch for n in (w.iter, w.tests, w.event))]
    if min(numbers, default=0) < 0:
        message = "the state has a negative iteration; it is damaged"
        raise SnapshotError(message, code=ErrorCode.CORRUPT)


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without leading ones: old states give every array four axes."""
    return tuple(dropwhile(lambda size: size == 1, shape))
