"""Files of solver states: Caffe's binary and HDF5 formats, with additions that Caffe skips.

Source: Caffe, ``SGDSolver::SnapshotSolverState...`` and ``RestoreSolverStateFrom...`` in
``src/caffe/solvers/sgd_solver.cpp``.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.core.paths import is_file
from demitasse.errors import ErrorCode, SnapshotError, WeightsError
from demitasse.io.data.databases.hdf5 import array_of, arrays_of, damage, member
from demitasse.io.proto import (
    BlobProto,
    NetParameter,
    ResumeState,
    SolverState,
    escape_invalid_utf8,
    read_binary,
    stored_shape,
)
from demitasse.io.proto.read_binary import parse_message
from demitasse.io.proto.write import write_pieces
from demitasse.io.proto.zero_copy import Arrays, blob_pieces, read_message_arrays, with_field
from demitasse.io.weights.hdf5 import is_hdf5, new_hdf5, open_hdf5

RESUME = "demitasse_resume"
"""Data set of an HDF5 state with an encoded ``ResumeState``; Caffe does not read it."""


@dataclass(frozen=True)
class State:
    """Contents of a solver state file."""

    iter: int  # number of updates made
    learned_net: str  # path of the weights file, as written; empty if there is none
    current_step: int  # of the policies ``multistep`` and ``plateau``
    history: Sequence[np.ndarray] = field(default_factory=list)  # in their parameters' shapes
    resume: ResumeState | None = None  # for an exact resume; None in states that Caffe wrote


def write_state(path: Path, state: State, *, hdf5: bool) -> None:
    """Write a state atomically; on an error an old file is kept."""
    if hdf5:
        _write_hdf5(path, state)
        return
    step, net = state.current_step, state.learned_net
    message = SolverState(iter=state.iter, learned_net=net, current_step=step, resume=state.resume)
    history = [blob_pieces(array) for array in state.history]
    write_pieces(path, with_field(message, SolverState.HISTORY_FIELD_NUMBER, history))


def read_state(path: str | Path) -> State:
    """Read a state, in either of the two formats.

    Raises:
        SnapshotError: The file does not exist, is damaged, or is no solver state.
    """
    path = Path(path)
    if is_hdf5(path):
        return _read_hdf5(path)
    try:
        message, arrays = read_message_arrays(path, SolverState, SnapshotError)
    except SnapshotError:
        if is_file(path) and _is_weights(path):
            raise _weights_mistaken_for_state(path) from None
        raise
    if not message.HasField("iter"):
        if _is_weights(path):
            raise _weights_mistaken_for_state(path)
        text = "this is not a solver state: iter is missing"
        raise SnapshotError(text, code=ErrorCode.INVALID, field="iter").at(str(path))
    history = [_array(blob, i, path, arrays) for i, blob in enumerate(message.history)]
    try:
        arrays.check_unchanged()
    except SnapshotError as error:
        raise error.at(str(path)) from None
    resume = message.resume if message.HasField("resume") else None
    return State(message.iter, message.learned_net, message.current_step, history, resume)


def _array(blob: BlobProto, index: int, path: Path, arrays: Arrays) -> np.ndarray:
    try:
        values, shape = arrays.floats(blob), stored_shape(blob)
    except (SnapshotError, WeightsError) as error:
        text = f"history {index}: {error.message}"
        raise SnapshotError(text, code=error.code, history=index).at(str(path)) from error
    try:
        if min(shape, default=1) >= 0 and values.size == math.prod(shape):
            return values.reshape(shape)
    except ValueError:  # no values, and axes that are too long
        pass
    text = f"history {index} has {values.size} values for its shape {shape}"
    details = {"history": index, "expected": shape, "got": values.size}
    raise SnapshotError(text, code=ErrorCode.SHAPE_MISMATCH, **details).at(str(path))


def _is_weights(path: Path) -> bool:
    try:
        net = read_binary(path, NetParameter)
    except WeightsError:
        return False
    return bool(net.layer or net.layers)


def _weights_mistaken_for_state(path: Path) -> SnapshotError:
    state = path.with_name(re.sub(r"\.caffemodel(\.h5)?$", r".solverstate\1", path.name))
    example = f", e.g. {state}" if state != path and is_file(state) else ""
    text = (
        "this file contains the weights of a net, not the state of a solver. To resume a run give "
        f"its .solverstate{example}; to start a new run from these weights, load them as weights"
    )
    return SnapshotError(text, code=ErrorCode.INVALID).at(str(path))


def _write_hdf5(path: Path, state: State) -> None:
    with new_hdf5(path) as file:
        _write_string(file, "learned_net", state.learned_net)
        file.create_dataset("iter", data=np.array([state.iter], np.int32))
        file.create_dataset("current_step", data=np.array([state.current_step], np.int32))
        history = file.create_group("history")
        for index, array in enumerate(state.history):
            history.create_dataset(str(index), data=array)
        if state.resume is not None:
            encoded = np.frombuffer(state.resume.SerializeToString(), np.uint8)
            file.create_dataset(RESUME, data=encoded)


def _write_string(file: Any, name: str, text: str) -> None:
    """Write a string that ends in a zero byte, as Caffe expects."""
    import h5py

    encoded = text.encode()
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(len(encoded) + 1)
    space = h5py.h5s.create(h5py.h5s.SCALAR)
    data = h5py.h5d.create(file.id, name.encode(), kind, space)
    data.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(encoded, f"S{len(encoded) + 1}"))


def _read_hdf5(path: Path) -> State:
    try:
        with damage(path, SnapshotError), open_hdf5(path, "r") as file:
            if "iter" not in file or "history" not in file:
                if "data" in file:
                    raise _weights_mistaken_for_state(path)
                text = "this HDF5 file is no solver state: 'iter' or 'history' is missing"
                raise SnapshotError(text, code=ErrorCode.INVALID, field="iter").at(str(path))
            history = member(file, "history")
            names = sorted(history, key=lambda name: int(name) if name.isdecimal() else -1)
            if names != [str(i) for i in range(len(names))]:
                text = f"got history arrays named {', '.join(names)}, expected 0, 1, 2, ..."
                raise SnapshotError(text, code=ErrorCode.CORRUPT, field="history").at(str(path))
            arrays = arrays_of([member(history, name) for name in names])
            resume = None
            if RESUME in file:
                resume = parse_message(array_of(member(file, RESUME)).tobytes(), ResumeState)
                escape_invalid_utf8(resume)
            return State(
                _integer(member(file, "iter")),
                _text(array_of(member(file, "learned_net"))) if "learned_net" in file else "",
                _integer(member(file, "current_step")) if "current_step" in file else 0,
                arrays,
                resume,
            )
    except WeightsError as error:
        raise SnapshotError(error.message, code=error.code) from error


def _integer(dataset: Any) -> int:
    return int(array_of(dataset).reshape(-1)[0])


def _text(value: np.ndarray) -> str:
    first = value.reshape(-1)[0]
    text = first.decode("utf-8", "backslashreplace") if isinstance(first, bytes) else str(first)
    return text.partition("\0")[0]  # as in C
