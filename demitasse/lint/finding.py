"""What lint has to say about a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from demitasse.core.text import escaped
from demitasse.lint.codes import Code

__all__ = ["Finding", "Severity", "in_order"]

Severity = Literal["error", "warning", "note"]
"""error: it will not run. warning: it runs, but probably not as meant. note: worth knowing."""

RANKS = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Finding:
    """One thing lint has found.

    Attributes:
        severity: How bad it is.
        code: The name of the rule, which stays the same from version to version.
        message: What is so, and what to do.
        where: File and line, and what part of it, as far as known.
    """

    severity: Severity
    code: Code
    message: str
    where: str = ""

    def __str__(self) -> str:
        place = f"{escaped(self.where, one_line=True)}: " if self.where else ""
        return f"{place}{self.severity}: {escaped(self.message)} [{self.code}]"


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the worst first, otherwise in the order they came.

    What is said of several places in the same words is said once, with the number of the others.
    """
    places: dict[tuple[Severity, Code, str], dict[str, None]] = {}
    for finding in findings:
        key = (finding.severity, finding.code, finding.message)
        places.setdefault(key, {})[finding.where] = None
    unique = []
    for (severity, code, message), (first, *others) in places.items():
        again = f" (and {len(others)} more)" if others else ""
        unique.append(Finding(severity, code, message + again, first))
    return sorted(unique, key=lambda finding: RANKS[finding.severity])
