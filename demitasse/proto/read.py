"""Read text and binary messages, with every upgrade applied to nets and solvers.

Source: Caffe, ``src/caffe/util/io.cpp``, ``src/caffe/util/upgrade_proto.cpp``.
"""

import logging
import os
from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

from demitasse.errors import PrototxtError
from demitasse.proto.caffe_pb2 import NetParameter, SolverParameter
from demitasse.proto.read_binary import read_binary
from demitasse.proto.upgrade import Problem, upgrade_net, upgrade_solver

__all__ = [
    "parse_text",
    "read_net_params",
    "read_net_params_binary",
    "read_solver_params",
    "read_text",
]

M = TypeVar("M", bound=Message)
PathLike = str | os.PathLike[str]

log = logging.getLogger("demitasse.proto")


def parse_text(text: str, cls: type[M], source: str | None = None) -> M:
    """Make a message from prototxt.

    Args:
        text: The prototxt; an empty one is an empty message.
        cls: The message class.
        source: Where the text is from, for error messages.

    Raises:
        PrototxtError: The text is not a message of this class.
    """
    try:
        return text_format.Parse(text, cls())
    except text_format.ParseError as error:
        raise PrototxtError(str(error), source, error.GetLine(), error.GetColumn()) from error


def read_text(path: PathLike, cls: type[M]) -> M:
    """Read a message from a prototxt file.

    Raises:
        PrototxtError: The file is not there, is empty, or is not a message of this class.
    """
    return parse_text(_text(path), cls, os.fspath(path))


def read_net_params(path: PathLike) -> NetParameter:
    """Read a net from prototxt and bring it to the current format.

    Raises:
        PrototxtError: The file is not there, is empty, or is not a net.
    """
    net = read_text(path, NetParameter)
    _upgraded(net, path)
    return net


def read_net_params_binary(path: PathLike) -> NetParameter:
    """Read a net with its parameters from a caffemodel and bring it to the current format.

    Raises:
        WeightsError: The file is not there, or is damaged.
    """
    net = read_binary(path, NetParameter)
    _upgraded(net, path)
    return net


def read_solver_params(path: PathLike) -> SolverParameter:
    """Read a solver from prototxt and bring it to the current format.

    ``snapshot_prefix`` is completed as Caffe does: absent, it is the solver file without its
    ending; an existing folder gets the stem of the solver file appended.

    Raises:
        PrototxtError: The file is not there, is empty, or is not a solver.
    """
    solver = read_text(path, SolverParameter)
    try:
        notes = upgrade_solver(solver)
    except PrototxtError as error:
        raise error.at(os.fspath(path)) from None
    _tell(notes, path)
    file = Path(path)
    if not solver.HasField("snapshot_prefix"):
        solver.snapshot_prefix = os.fspath(file.with_suffix(""))
    elif Path(solver.snapshot_prefix).is_dir():
        solver.snapshot_prefix = os.fspath(Path(solver.snapshot_prefix) / file.stem)
    return solver


def _upgraded(net: NetParameter, path: PathLike) -> None:
    try:
        notes = upgrade_net(net)
    except PrototxtError as error:
        raise error.at(os.fspath(path)) from None
    _tell(notes, path)


def _tell(notes: list[str], path: PathLike) -> None:
    for note in notes:
        level = logging.WARNING if isinstance(note, Problem) else logging.INFO
        log.log(level, "%s: %s", os.fspath(path), note)


def _text(path: PathLike) -> str:
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise PrototxtError(reason, os.fspath(path)) from error
    if not raw.strip():
        message = "the file is empty"
        raise PrototxtError(message, os.fspath(path))
    if b"\0" in raw:
        message = "this is a binary file, not prototxt; are two arguments swapped?"
        raise PrototxtError(message, os.fspath(path))
    # Comments may be in any encoding; text outside them is checked when it is parsed.
    return raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
