"""Find mistakes in nets and solvers without running them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from demitasse.core.paths import is_file, resolve_path
from demitasse.errors import DemitasseError
from demitasse.io.proto import (
    NetParameter,
    NetState,
    Phase,
    ReadNet,
    SolverParameter,
    upgrade_net,
    upgrade_solver,
)
from demitasse.io.proto.read import text_of_file
from demitasse.io.proto.text.parser import Parser
from demitasse.io.proto.text.tokens import NAME, Fault, LineMap, grouped, tokens
from demitasse.io.proto.upgrade_layers import Lines, Problem
from demitasse.lint import data_rules, layer_rules, solver_rules
from demitasse.lint.findings import Finding, Severity, in_order
from demitasse.lint.layer_rules import deprecated_fields, set_up
from demitasse.lint.net_view import NetView
from demitasse.training.nets import TRAIN_FIELDS, merged_state

__all__ = ["Finding", "Severity", "lint"]

Use = tuple[str, NetState]
"""Phase in which a net is made, and the state that its user adds to the net's state."""

BOTH_PHASES: Sequence[Use] = [
    (phase, NetState(phase=Phase.Value(phase))) for phase in ("TRAIN", "TEST")
]


def lint(source: str | os.PathLike[str]) -> list[Finding]:
    """Check the prototxt of a net, or of a solver and its nets.

    Nets without other errors are set up, but not run. Data files are read if they exist: the first
    records of a database, lists of images, means.

    Args:
        source: The file.

    Returns:
        The findings in the order of their lines. An unreadable file gives a finding, too.
    """
    text = SourceFile(Path(source))
    more = _check_solver(text) if text.kind is SolverParameter else _check_net(text)
    return in_order([*text.findings, *more])


# -- nets --------------------------------------------------------------------------------------


def _check_net(text: SourceFile, uses: Sequence[Use] = ()) -> Iterator[Finding]:
    """Check the net of a file, by default in both phases."""
    if text.message is not None:
        sound = not any(finding.severity == "error" for finding in text.findings)
        yield from _check_message(
            text.message, uses, text.name, text.path.parent, [*text.layer_lines], text.input_line,
            sound=sound,
        )  # fmt: skip


def _check_message(
    net: NetParameter, uses: Sequence[Use], where: str, base: Path, lines: Lines,
    input_line: int | None = None, *, sound: bool = True,
) -> Iterator[Finding]:  # fmt: skip
    """Check a net, which is upgraded; ``lines`` are those of its layers as written, if known."""
    yield from deprecated_fields(net, where, lines)
    try:
        notes = upgrade_net(net, lines)
    except DemitasseError as error:
        yield Finding("error", "old-format", error.message, where)
        return
    for note in notes:
        if isinstance(note, Problem):
            yield Finding("warning", "left-out", str(note), where)
    if lines and lines[0] is None:  # the layer made of the net's input fields
        lines[0] = input_line
    yield from _check_uses(ReadNet(net, where, lines), uses, base, sound=sound)


def _check_uses(net: ReadNet, uses: Sequence[Use], base: Path, *, sound: bool) -> Iterator[Finding]:
    """Check a net in its uses; set it up where it is ``sound`` and no rule finds an error.

    Without uses, a net is checked in both phases, or in the only phase in which it is complete.
    """
    try:
        views = [
            NetView(net, merged_state(phase, net.message.state, own), base)
            for phase, own in uses or BOTH_PHASES
        ]
    except DemitasseError as error:
        index = error.details.get("index")
        where = net.origin(index) if isinstance(index, int) else ""
        yield Finding("error", "rules", error.message, where or net.source)
        return
    complete = [view for view in views if not view.missing()]
    if complete and not uses:
        for one in (finding for view in views for finding in view.missing()[:1]):
            message = f"{one.here.message}; the net cannot be made in this phase without a stage"
            yield Finding("note", "one-phase", message, one.here.where)
        views = complete
    for view in views:
        view.findings += view.missing()
        for rule in (*layer_rules.RULES, *data_rules.RULES):
            rule(view)
        if sound and not any(one.here.severity == "error" for one in view.findings):
            set_up(view)
    several = len(views) > 1
    everywhere = set.intersection(*({one.anywhere for one in view.findings} for view in views))
    for view in views:
        for here, anywhere in view.findings:
            yield anywhere if several and anywhere in everywhere else here


# -- solvers -----------------------------------------------------------------------------------


def _check_solver(text: SourceFile) -> Iterator[Finding]:
    param = text.message
    if param is None:
        return
    try:
        for note in upgrade_solver(param):
            yield Finding("note", "old-field", note, text.where("solver_type"))
    except DemitasseError as error:
        yield Finding("error", "solver-field", error.message, text.where("solver_type"))
    for rule in solver_rules.RULES:
        for severity, code, field, message in rule(param):
            yield Finding(severity, code, message, text.where(field))
    for name in (part.strip() for one in param.weights for part in one.split(",")):
        if name and not is_file(resolve_path(name, text.path.parent)):
            message = f"got weights {name!r}, which is no file"
            yield Finding("error", "missing-file", message, text.where("weights"))
    for value, field, uses in _nets_of(param):
        where, base = text.where(field), text.path.parent
        if isinstance(value, NetParameter):
            yield from _check_message(value, uses, f"{where}: {field}", base, [])
            continue
        try:
            net = SourceFile(resolve_path(value, base), NetParameter)
        except DemitasseError as error:
            yield Finding("error", "missing-file", str(error), where)
            continue
        for finding in net.findings:
            if finding.code == "unreadable":
                message = f"{field} {value!r}: {finding.message}"
                yield Finding("error", "missing-file", message, where)
            else:
                yield finding
        yield from _check_net(net, uses)


def _nets_of(param: SolverParameter) -> Iterator[tuple[NetParameter | str, str, list[Use]]]:
    """Yield the nets of a solver, with their fields and uses."""
    tests = [("TEST", own) for own in param.test_state or [NetState()]]
    for field in TRAIN_FIELDS:
        if param.HasField(field):
            uses = [("TRAIN", param.train_state)]
            if field in {"net", "net_param"} and param.test_iter:
                uses += tests
            yield getattr(param, field), field, uses
    for field in ("test_net", "test_net_param"):
        for value in getattr(param, field):
            yield value, field, tests


Kind = type[NetParameter] | type[SolverParameter]


class SourceFile:
    """A parsed prototxt file, of a ``kind`` that its fields determine by default.

    A net also has ``layer_lines``, the first line of each ``layers`` or ``layer`` entry, and
    ``input_line``, the line of its first ``input``, or None.
    """

    def __init__(self, path: Path, kind: Kind | None = None) -> None:
        self.path, self.name = path, os.fspath(path)
        self.findings: list[Finding] = []  # syntax errors, unknown fields and fields of forks
        self.message: Any = None  # without unknown fields; None if the file cannot be read
        self.lines: dict[str, int] = {}  # field of the outermost message -> its first line
        try:
            text = text_of_file(path)
        except DemitasseError as error:
            self.kind: Kind = kind or NetParameter
            self.findings.append(Finding("error", "unreadable", error.message, self.name))
            return
        self.lines = field_lines(text)
        self.kind = kind or kind_of(set(self.lines))
        strict, lenient = Parser(text), Parser(text, ignore_unknown_fields=True)
        message = self.kind()
        strict.parse(self.kind())
        lenient.parse(message)
        faults: list[tuple[Severity, Fault]] = [("error", one) for one in grouped(strict.faults)]
        faults += [("warning", one) for one in grouped(strict.warnings)]
        self.findings += [
            Finding(severity, one.kind, one.message, f"{self.name}:{one.line}:{one.column}")
            for severity, one in faults
        ]
        self.layer_lines = lenient.layer_lines["layers"] or lenient.layer_lines["layer"]
        self.input_line = lenient.input_line
        if not lenient.faults:
            self.message = message

    def where(self, field: str) -> str:
        """Return the file and line of a field of the outermost message, or the file."""
        return f"{self.name}:{self.lines[field]}" if field in self.lines else self.name


def field_lines(text: str) -> dict[str, int]:
    """Return the first line, from 1, of each field of the outermost message."""
    places, lines, depth = LineMap(text), dict[str, int](), 0
    last = None
    for token in tokens(text):
        if depth == 0 and last is not None and token.text in {":", "{", "<"}:
            lines.setdefault(last.text, places.line(last.offset))
        depth += (token.text in {"{", "<"}) - (token.text in {"}", ">"})
        last = token if token.kind == NAME else None
    return lines


def kind_of(fields: set[str]) -> Kind:
    """Return the type of a message by the names of its fields."""
    net, solver = (
        len(fields & {field.name for field in cls.DESCRIPTOR.fields})
        for cls in (NetParameter, SolverParameter)
    )
    return SolverParameter if solver > net else NetParameter
