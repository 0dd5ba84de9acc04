"""Reading of text and binary messages; nets and solvers are upgraded to the current format.

Source: Caffe, ``src/caffe/util/io.cpp``, ``src/caffe/util/upgrade_proto.cpp``.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from google.protobuf.message import Message

from demitasse.core.deprecated import renamed_arguments
from demitasse.core.paths import code_of, is_folder, read_failure, regular_file
from demitasse.errors import ErrorCode, PrototxtError, WeightsError
from demitasse.io.proto.caffe_pb2 import NetParameter, SolverParameter
from demitasse.io.proto.read_binary import read_binary
from demitasse.io.proto.text import Parsed, parse
from demitasse.io.proto.upgrade import upgrade_net, upgrade_solver
from demitasse.io.proto.upgrade_layers import Lines, Problem

if TYPE_CHECKING:
    from demitasse.io.proto.zero_copy import Arrays


class ReadNet(NamedTuple):
    """A net, and the line of each layer.

    Attributes:
        message: The net.
        source: The file, or another name for messages.
        lines: Line of each layer, from 1; None for a layer without a line, empty for a net that
            was not read from a file.
    """

    message: NetParameter
    source: str = ""
    lines: Sequence[int | None] = ()

    def origin(self, index: int) -> str:
        """Return ``file:line`` of layer ``index``, or an empty string if unknown."""
        line = self.lines[index] if index < len(self.lines) else None
        return "" if line is None else f"{self.source}:{line}"


M = TypeVar("M", bound=Message)

PathLike = str | os.PathLike[str]

log = logging.getLogger("demitasse.io.proto")

START = 1 << 16  # bytes examined for zeros, which only binary files have


@renamed_arguments(lenient="ignore_unknown_fields")
def parse_text(
    text: str, cls: type[M], source: str | None = None, *, ignore_unknown_fields: bool = False
) -> M:
    """Parse a message from prototxt; empty text is an empty message.

    ``source`` names the text in errors. ``ignore_unknown_fields`` skips unknown fields with a
    warning instead of raising an error.

    Raises:
        PrototxtError: The text is no message of this class; the error lists all faults.
    """
    return _parsed(text, cls, source, ignore_unknown_fields).message


@renamed_arguments(lenient="ignore_unknown_fields")
def read_text(path: PathLike, cls: type[M], *, ignore_unknown_fields: bool = False) -> M:
    """Read a message from a prototxt file; ``ignore_unknown_fields`` as for ``parse_text``.

    Raises:
        PrototxtError: The file does not exist, is empty, or is no message of this class.
    """
    return parse_text(
        text_of_file(path), cls, os.fspath(path), ignore_unknown_fields=ignore_unknown_fields
    )


@renamed_arguments(lenient="ignore_unknown_fields")
def read_net_params(path: PathLike, *, ignore_unknown_fields: bool = False) -> NetParameter:
    """Read a net from prototxt and upgrade it to the current format; see ``read_net``."""
    return read_net(path, ignore_unknown_fields=ignore_unknown_fields).message


@renamed_arguments(lenient="ignore_unknown_fields")
def read_net(path: PathLike, *, ignore_unknown_fields: bool = False) -> ReadNet:
    """Read a net from prototxt, upgrade it to the current format, and return it with its lines.

    ``ignore_unknown_fields`` as for ``parse_text``.

    Raises:
        PrototxtError: The file does not exist, is empty, or is no net.
    """
    text, source = text_of_file(path), os.fspath(path)
    try:
        return read_net_text(text, source, ignore_unknown_fields=ignore_unknown_fields)
    except PrototxtError:
        if Path(source).suffix != ".toml":
            raise
        message = "got a model card (.toml), expected a net; give the prototxt that the card names"
        raise PrototxtError(message, code=ErrorCode.INVALID).at(source) from None


def read_net_text(
    text: str, source: str = "text", *, ignore_unknown_fields: bool = False
) -> ReadNet:
    """Read a net from prototxt in a string; see ``read_net``.

    Raises:
        PrototxtError: The text is no net.
    """
    parsed = _parsed(text, NetParameter, source, ignore_unknown_fields)
    lines: Lines = [*parsed.layer_lines]
    try:
        _log_notes(upgrade_net(parsed.message, lines), source)
    except PrototxtError as error:
        raise error.at(source) from None
    if lines and lines[0] is None:  # the Input layer made of the net's input fields
        lines[0] = parsed.input_line
    return ReadNet(parsed.message, source, lines)


def read_net_params_binary(path: PathLike) -> NetParameter:
    """Read a net with parameters from a caffemodel and upgrade it to the current format.

    Raises:
        WeightsError: The file does not exist, or is damaged.
    """
    net = read_binary(path, NetParameter)
    _upgraded_weights(net, path)
    return net


def read_net_arrays(path: PathLike) -> "tuple[NetParameter, Arrays]":
    """Read a caffemodel as ``read_net_params_binary`` does, but return large arrays separately.

    Raises:
        WeightsError: The file does not exist, or is damaged.
    """
    from demitasse.io.proto.zero_copy import read_message_arrays  # needs numpy

    net, arrays = read_message_arrays(path, NetParameter)
    _upgraded_weights(net, path)
    return net, arrays


@renamed_arguments(lenient="ignore_unknown_fields")
def read_solver_params(path: PathLike, *, ignore_unknown_fields: bool = False) -> SolverParameter:
    """Read a solver from prototxt and upgrade it to the current format.

    ``snapshot_prefix`` is completed as in Caffe: by default it is the solver file without its
    extension; an existing folder gets the stem of the solver file appended.
    ``ignore_unknown_fields`` as for ``parse_text``.

    Raises:
        PrototxtError: The file does not exist, is empty, or is no solver.
    """
    file, source = Path(path), os.fspath(path)
    solver = read_text(path, SolverParameter, ignore_unknown_fields=ignore_unknown_fields)
    try:
        _log_notes(upgrade_solver(solver), source)
    except PrototxtError as error:
        raise error.at(source) from None
    prefix = solver.snapshot_prefix
    if not solver.HasField("snapshot_prefix"):
        prefix = os.fspath(file.with_suffix(""))
    elif prefix and is_folder(prefix):
        prefix = os.fspath(Path(prefix) / file.stem)
    try:
        solver.snapshot_prefix = prefix
    except UnicodeEncodeError:
        message = (
            "got a file name that is no UTF-8 for snapshot_prefix; set snapshot_prefix to a path "
            "that is no folder"
        )
        field, code = "snapshot_prefix", ErrorCode.INVALID
        raise PrototxtError(message, source, code=code, field=field) from None
    return solver


def _parsed(text: str, cls: type[M], source: str | None, ignore_unknown_fields: bool) -> Parsed[M]:
    parsed = parse(text, cls, source, ignore_unknown_fields)
    for one in parsed.warnings:
        log.warning("%s:%d:%d: %s", source or "text", one.line, one.column, one.message)
    return parsed


def _upgraded_weights(net: NetParameter, path: PathLike) -> None:
    try:
        _log_notes(upgrade_net(net), os.fspath(path))
    except PrototxtError as error:
        reason, details = error.message, error.details
        raise WeightsError(reason, code=error.code, **details).at(os.fspath(path)) from None


def _log_notes(notes: list[str], source: str) -> None:
    for note in notes:
        level = logging.WARNING if isinstance(note, Problem) else logging.INFO
        log.log(level, "%s: %s", source, note)


def text_of_file(path: PathLike) -> str:
    """Return the text of a prototxt file; refuse empty and binary files."""
    try:
        with regular_file(path).open("rb") as file:
            raw = file.read(START)
            if b"\0" not in raw:  # a binary file may have gigabytes of weights
                raw += file.read()
    except OSError as error:
        reason, source = read_failure(error, path), os.fspath(path)
        if found := sorted(Path(path).glob("*.prototxt")) if is_folder(Path(path)) else []:
            reason += f"; give a prototxt in it: {', '.join(map(str, found[:3]))}"
        raise PrototxtError(reason, source, code=code_of(error)) from error
    if b"\0" in raw:
        message = "this is a binary file, not prototxt; are two arguments swapped?"
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):  # as PowerShell writes it
            message = "this is text in UTF-16, expected UTF-8; save the file as UTF-8"
        raise PrototxtError(message, os.fspath(path), code=ErrorCode.UNREADABLE)
    if not raw.strip():
        message = "the file is empty"
        raise PrototxtError(message, os.fspath(path), code=ErrorCode.MISSING)
    # Comments may have any encoding; the parser checks text outside comments.
    return raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
