"""What is wrong with a text, where, and what was probably meant."""

from typing import Literal, NamedTuple

from demitasse.errors import PrototxtError

__all__ = ["Fault", "FaultKind", "error_of", "grouped", "short", "shown"]

FaultKind = Literal["syntax", "unknown-field", "foreign-field"]
"""A foreign field is one that only a fork of Caffe knows."""

MOST = 20  # different faults that one message lists


class Fault(NamedTuple):
    """One finding.

    Attributes:
        line: From 1.
        column: From 1.
        message: What is wrong and what would be right.
        kind: What kind of fault it is.
    """

    line: int
    column: int
    message: str
    kind: FaultKind = "syntax"


def grouped(faults: list[Fault]) -> list[Fault]:
    """The faults in the order of the text; equal ones become one that names the other lines."""
    places: dict[str, list[Fault]] = {}
    for fault in sorted(faults):
        places.setdefault(fault.message, []).append(fault)
    return [
        fault._replace(message=fault.message + _also(again)) for fault, *again in places.values()
    ]


def error_of(faults: list[Fault], source: str | None) -> PrototxtError:
    """One exception for all faults."""
    first, *rest = grouped(faults)
    where = f"{source}:" if source else ""
    lines = [first.message]
    lines += [f"{where}{one.line}:{one.column}: {one.message}" for one in rest[: MOST - 1]]
    if len(rest) >= MOST:
        lines.append(f"... and {len(rest) - MOST + 1} more")
    return PrototxtError("\n".join(lines), source, first.line, first.column)


def _also(again: list[Fault]) -> str:
    if not again:
        return ""
    named = ", ".join(str(fault.line) for fault in again[:5])
    return f" (again on line {named}{' and others' if len(again) > 5 else ''})"


def shown(kind: str, text: str) -> str:
    """A token as a message names it."""
    if kind == "end":
        return "the end of the text"
    return short(text)


def short(text: str) -> str:
    """As much of a piece of text as a message can hold."""
    return text if len(text) <= 40 else f"{text[:37]}..."
