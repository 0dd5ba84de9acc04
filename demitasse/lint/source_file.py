"""A prototxt file: its kind, its syntax errors, the lines of its fields."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from demitasse.errors import DemitasseError
from demitasse.io.proto import NetParameter, SolverParameter
from demitasse.io.proto.read import text_of_file
from demitasse.io.proto.text.parser import Parser
from demitasse.io.proto.text.tokens import NAME, Fault, LineMap, grouped, tokens
from demitasse.lint.findings import Finding, Severity

Kind = type[NetParameter] | type[SolverParameter]


class SourceFile:
    """A parsed prototxt file.

    Args:
        path: The file.
        kind: Type of its message; None for the type by its fields.

    Attributes:
        findings: Syntax errors, unknown fields and fields of forks.
        kind: NetParameter or SolverParameter.
        message: The message without unknown fields; None if the file cannot be read.
        layer_lines: Of a net, the first line of each ``layers`` or ``layer`` entry.
        input_line: Of a net, the line of its first ``input``, or None.
        lines: Field of the outermost message -> its first line.
    """

    def __init__(self, path: Path, kind: Kind | None = None) -> None:
        self.path, self.name = path, os.fspath(path)
        self.findings: list[Finding] = []
        self.message: Any = None
        self.lines: dict[str, int] = {}
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
        self.findings += [self._finding("error", fault) for fault in grouped(strict.faults)]
        self.findings += [self._finding("warning", fault) for fault in grouped(strict.warnings)]
        self.layer_lines = lenient.layer_lines["layers"] or lenient.layer_lines["layer"]
        self.input_line = lenient.input_line
        if not lenient.faults:
            self.message = message

    def where(self, field: str) -> str:
        """Return the file and line of a field of the outermost message, or the file."""
        return f"{self.name}:{self.lines[field]}" if field in self.lines else self.name

    def _finding(self, severity: Severity, fault: Fault) -> Finding:
        where = f"{self.name}:{fault.line}:{fault.column}"
        return Finding(severity, fault.kind, fault.message, where)


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
