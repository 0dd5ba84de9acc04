"""Look for what is wrong, or probably not meant, in nets and solvers; nothing is run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from demitasse.core.paths import resolve_path
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
from demitasse.io.proto.upgrade import Problem
from demitasse.io.proto.upgrade_notes import Lines
from demitasse.lint import data, layers, solver
from demitasse.lint.finding import Finding, Severity, in_order
from demitasse.lint.old import old_fields
from demitasse.lint.text import Text
from demitasse.lint.view import Told, View
from demitasse.training.nets import TRAIN_FIELDS, merged_state

__all__ = ["Finding", "Severity", "lint"]

Use = tuple[str, NetState]  # the phase a solver makes a net in, and what it adds to the net's state


def lint(source: str | os.PathLike[str]) -> list[Finding]:
    """Look through the prototxt of a net or a solver, and through the nets a solver names.

    Files that nets name are looked into where they are there: the first records of a database, the
    list of images, the mean.

    Args:
        source: The file.

    Returns:
        What was found, errors first. A file that cannot be read gives a finding, too.
    """
    text = Text(Path(source))
    more = _solver(text) if text.kind is SolverParameter else _net(text)
    return in_order([*text.findings, *more])


# -- nets --------------------------------------------------------------------------------------


def _net(text: Text, uses: Sequence[Use] = ()) -> Iterator[Finding]:
    """Look through the net of a text, by default in both phases."""
    net = text.message
    if net is None:
        return
    yield from old_fields(net, text.name)
    lines: Lines = [*text.layer_lines]
    try:
        notes = upgrade_net(net, lines)
    except DemitasseError as error:
        yield Finding("error", "old-format", error.message, text.name)
        return
    for note in notes:
        if isinstance(note, Problem):
            yield Finding("warning", "left-out", str(note), text.name)
    if lines and lines[0] is None:  # the layer made of the net's input fields
        lines[0] = text.input_line
    read = ReadNet(net, text.name, lines)
    if uses:
        yield from _message(read, _states(net, uses), text.path.parent)
    else:
        yield from _alone(read, text.path.parent)


def _alone(net: ReadNet, base: Path) -> Iterator[Finding]:
    """Look through a net that may be meant for one phase only, or for a stage."""
    broken: list[Told] = []
    whole: list[NetState] = []
    for state in _both_phases(net.message):
        try:
            missing = View(net, state, base).missing()
        except DemitasseError:  # said again below
            missing = []
        broken += missing[:1]
        whole += [] if missing else [state]
    for one in broken if whole else []:
        message = f"{one.here.message}, so the net cannot be made there without a stage"
        yield Finding("note", "one-phase", message, one.here.where)
    yield from _message(net, whole or _both_phases(net.message), base)


def _both_phases(net: NetParameter) -> list[NetState]:
    states = []
    for phase in ("TRAIN", "TEST"):
        state = NetState()
        state.CopyFrom(net.state)
        state.phase = Phase.Value(phase)
        states.append(state)
    return states


def _message(net: ReadNet, states: Sequence[NetState], base: Path) -> Iterator[Finding]:
    views = []
    for state in states:
        try:
            view = View(net, state, base)
        except DemitasseError as error:
            yield Finding("error", "rules", error.message, net.source)
            return
        view.told += view.missing()
        for rule in (*layers.RULES, *data.RULES):
            rule(view)
        views.append(view)
    several = len(views) > 1
    everywhere = set.intersection(*({one.anywhere for one in view.told} for view in views))
    for view in views:
        for here, anywhere in view.told:
            yield anywhere if several and anywhere in everywhere else here


# -- solvers -----------------------------------------------------------------------------------


def _solver(text: Text) -> Iterator[Finding]:
    param = text.message
    if param is None:
        return
    try:
        for note in upgrade_solver(param):
            yield Finding("note", "old-field", note, text.where("solver_type"))
    except DemitasseError as error:
        yield Finding("error", "solver-field", error.message, text.where("solver_type"))
    for rule in solver.RULES:
        for severity, code, field, message in rule(param):
            yield Finding(severity, code, message, text.where(field))
    for value, field, uses in _nets_of(param):
        if isinstance(value, NetParameter):
            yield from _inner(value, uses, f"{text.where(field)}: {field}", text.path.parent)
        else:
            yield from _named(value, uses, f"{field} {value!r}", text.where(field), text.path)


def _named(
    name: str, uses: Sequence[Use], what: str, where: str, solver_file: Path
) -> Iterator[Finding]:
    """Look through a net that a solver names."""
    try:
        net = Text(resolve_path(name, solver_file.parent), NetParameter)
    except DemitasseError as error:
        yield Finding("error", "missing-file", str(error), where)
        return
    for finding in net.findings:
        if finding.code == "unreadable":
            yield Finding("error", "missing-file", f"{what}: {finding.message}", where)
        else:
            yield finding
    yield from _net(net, uses)


def _inner(net: NetParameter, uses: Sequence[Use], where: str, base: Path) -> Iterator[Finding]:
    """Look through a net that is written inside a solver."""
    yield from old_fields(net, where)
    try:
        upgrade_net(net)
    except DemitasseError as error:
        yield Finding("error", "old-format", error.message, where)
        return
    yield from _message(ReadNet(net, where), _states(net, uses), base)


def _nets_of(param: SolverParameter) -> Iterator[tuple[NetParameter | str, str, list[Use]]]:
    """Yield the nets of a solver, the fields they are given by, and how they are used."""
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


def _states(net: NetParameter, uses: Sequence[Use]) -> list[NetState]:
    return [merged_state(phase, net.state, own) for phase, own in uses]
