"""Read text and binary messages, with every upgrade applied to nets and solvers.

Source: Caffe, ``src/caffe/util/io.cpp``, ``src/caffe/util/upgrade_proto.cpp``.
"""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from demitasse.core.paths import is_folder, read_failure, regular_file
from demitasse.errors import PrototxtError, WeightsError
from demitasse.io.proto.caffe_pb2 import NetParameter, SolverParameter
from demitasse.io.proto.lines import ReadNet
from demitasse.io.proto.read_binary import read_binary
from demitasse.io.proto.text import Parsed, parse
from demitasse.io.proto.upgrade import Problem, upgrade_net, upgrade_solver
from demitasse.io.proto.upgrade_notes import Lines

if TYPE_CHECKING:
    from demitasse.io.proto.zero_copy.read import Arrays

__all__ = [
    "parse_text",
    "read_net",
    "read_net_arrays",
    "read_net_params",
    "read_net_params_binary",
    "read_solver_params",
    "read_text",
    "text_of_file",
]

M = TypeVar("M", bound=Message)
PathLike = str | os.PathLike[str]

log = logging.getLogger("demitasse.io.proto")

START = 1 << 16  # bytes; so many of a binary file tell that it is one


def parse_text(text: str, cls: type[M], source: str | None = None, *, lenient: bool = False) -> M:
    """Make a message from prototxt.

    Args:
        text: The prototxt; an empty one is an empty message.
        cls: The message class.
        source: Where the text is from, for error messages.
        lenient: Leave fields that are not known out with a warning, instead of refusing them.

    Raises:
        PrototxtError: The text is not a message of this class; all faults are listed.
    """
    return _parsed(text, cls, source, lenient).message


def read_text(path: PathLike, cls: type[M], *, lenient: bool = False) -> M:
    """Read a message from a prototxt file; ``lenient`` as for ``parse_text``.

    Raises:
        PrototxtError: The file is not there, is empty, or is not a message of this class.
    """
    return parse_text(text_of_file(path), cls, os.fspath(path), lenient=lenient)


def read_net_params(path: PathLike, *, lenient: bool = False) -> NetParameter:
    """Read a net from prototxt and bring it to the current format; see ``read_net``."""
    return read_net(path, lenient=lenient).message


def read_net(path: PathLike, *, lenient: bool = False) -> ReadNet:
    """Read a net from prototxt, bring it to the current format, and note where its layers are.

    Args:
        path: The file.
        lenient: As for ``parse_text``.

    Raises:
        PrototxtError: The file is not there, is empty, or is not a net.
    """
    source = os.fspath(path)
    parsed = _parsed(text_of_file(path), NetParameter, source, lenient)
    lines: Lines = [*parsed.layer_lines]
    _upgraded(parsed.message, source, lines)
    if lines and lines[0] is None:  # the layer made of the net's input fields
        lines[0] = parsed.input_line
    return ReadNet(parsed.message, source, lines)


def read_net_params_binary(path: PathLike) -> NetParameter:
    """Read a net with its parameters from a caffemodel and bring it to the current format.

    Raises:
        WeightsError: The file is not there, or is damaged.
    """
    net = read_binary(path, NetParameter)
    _upgraded_weights(net, path)
    return net


def read_net_arrays(path: PathLike) -> "tuple[NetParameter, Arrays]":
    """As ``read_net_params_binary``, with the large arrays beside the net.

    Raises:
        WeightsError: The file is not there, or is damaged.
    """
    from demitasse.io.proto.zero_copy.read import read_cut  # needs numpy

    net, arrays = read_cut(path, NetParameter)
    _upgraded_weights(net, path)
    return net, arrays


def read_solver_params(path: PathLike, *, lenient: bool = False) -> SolverParameter:
    """Read a solver from prototxt and bring it to the current format.

    ``snapshot_prefix`` is completed as Caffe does: absent, it is the solver file without its
    ending; an existing folder gets the stem of the solver file appended. ``lenient`` as for
    ``parse_text``.

    Raises:
        PrototxtError: The file is not there, is empty, or is not a solver.
    """
    file, source = Path(path), os.fspath(path)
    solver = read_text(path, SolverParameter, lenient=lenient)
    try:
        _tell(upgrade_solver(solver), source)
    except PrototxtError as error:
        raise error.at(source) from None
    if not solver.HasField("snapshot_prefix"):
        solver.snapshot_prefix = os.fspath(file.with_suffix(""))
    elif solver.snapshot_prefix and is_folder(solver.snapshot_prefix):
        solver.snapshot_prefix = os.fspath(Path(solver.snapshot_prefix) / file.stem)
    return solver


def _parsed(text: str, cls: type[M], source: str | None, lenient: bool) -> Parsed[M]:
    parsed = parse(text, cls, source, lenient)
    for one in parsed.warnings:
        log.warning("%s:%d:%d: %s", source or "text", one.line, one.column, one.message)
    return parsed


def _upgraded(net: NetParameter, source: str, lines: Lines) -> None:
    try:
        _tell(upgrade_net(net, lines), source)
    except PrototxtError as error:
        raise error.at(source) from None


def _upgraded_weights(net: NetParameter, path: PathLike) -> None:
    try:
        _tell(upgrade_net(net), os.fspath(path))
    except PrototxtError as error:
        raise WeightsError(error.message).at(os.fspath(path)) from None


def _tell(notes: list[str], source: str) -> None:
    for note in notes:
        level = logging.WARNING if isinstance(note, Problem) else logging.INFO
        log.log(level, "%s: %s", source, note)


def text_of_file(path: PathLike) -> str:
    """The text of a prototxt file.

    Raises:
        PrototxtError: The file is not there, is empty, or is binary.
    """
    try:
        with regular_file(path).open("rb") as file:
            raw = file.read(START)
            if b"\0" not in raw:  # else it may be gigabytes of weights
                raw += file.read()
    except OSError as error:
        raise PrototxtError(read_failure(error, path), os.fspath(path)) from error
    if b"\0" in raw:
        message = "this is a binary file, not prototxt; are two arguments swapped?"
        raise PrototxtError(message, os.fspath(path))
    if not raw.strip():
        message = "the file is empty"
        raise PrototxtError(message, os.fspath(path))
    # Comments may be in any encoding; text outside them is checked when it is parsed.
    return raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
