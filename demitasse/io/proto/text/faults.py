"""Faults of a text: message, position and grouping into one error."""

from typing import Literal, NamedTuple

from demitasse.errors import ErrorCode, PrototxtError

FaultKind = Literal["syntax", "unknown-field", "foreign-field"]
"""A foreign field is known to a fork of Caffe only."""

CODES = {
    "syntax": ErrorCode.UNREADABLE,
    "unknown-field": ErrorCode.UNKNOWN,
    "foreign-field": ErrorCode.UNSUPPORTED,
}

MOST = 20  # faults in one error message


class Fault(NamedTuple):
    """A fault or warning.

    Attributes:
        line: From 1.
        column: From 1.
        message: The fault, and the correction.
        kind: Kind of the fault.
    """

    line: int
    column: int
    message: str
    kind: FaultKind = "syntax"


def grouped(faults: list[Fault]) -> list[Fault]:
    """Return the faults in the order of the text, equal ones grouped with their lines."""
    places: dict[str, list[Fault]] = {}
    for fault in sorted(faults):
        places.setdefault(fault.message, []).append(fault)
    return [
        fault._replace(message=fault.message + _also(again)) for fault, *again in places.values()
    ]


def error_of(faults: list[Fault], source: str | None) -> PrototxtError:
    """Return one exception for all faults."""
    first, *rest = grouped(faults)
    where = f"{source}:" if source else ""
    lines = [first.message]
    lines += [f"{where}{one.line}:{one.column}: {one.message}" for one in rest[: MOST - 1]]
    if len(rest) >= MOST:
        lines.append(f"... and {len(rest) - MOST + 1} more")
    code = CODES[first.kind]
    message = "\n".join(lines)
    return PrototxtError(message, source, first.line, first.column, code=code, faults=len(faults))


def _also(again: list[Fault]) -> str:
    if not again:
        return ""
    named = ", ".join(str(fault.line) for fault in again[:5])
    return f" (again on line {named}{' and others' if len(again) > 5 else ''})"


def token_text(kind: str, text: str) -> str:
    """Return a token as text, for messages."""
    if kind == "end":
        return "the end of the text"
    return short(text)


def short(text: str) -> str:
    """Shorten a text for messages."""
    return text if len(text) <= 40 else f"{text[:37]}..."
