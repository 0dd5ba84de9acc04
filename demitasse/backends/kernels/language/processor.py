"""Processor features, read without loading LLVM's library."""

from __future__ import annotations

from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
CODE_FIELDS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
"""Fields that decide which code LLVM generates for a processor."""


@cache
def _fields() -> dict[str, str]:
    """Return Linux's fields of the first processor; {} on other systems."""
    found: dict[str, str] = {}
    try:
        with CPUINFO.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                name, colon, value = line.partition(":")
                if not colon:  # the end of the first processor
                    break
                found[name.strip()] = value.strip()
    except OSError:
        pass
    return found if "flags" in found else {}


def features() -> frozenset[str] | None:
    """Return the names of the processor's instruction sets; None if unknown."""
    fields = _fields()
    return frozenset(fields["flags"].split()) if fields else None


def name() -> str:
    """Return the processor's name; "" if unknown."""
    return _fields().get("model name", "")


def signature() -> tuple[str, ...] | None:
    """Return the fields that identify this processor; None if unknown."""
    fields = _fields()
    return tuple(fields.get(name, "") for name in CODE_FIELDS) if fields else None
