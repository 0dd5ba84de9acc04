"""Processor features, read without loading LLVM's library."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["features", "name", "signature"]

CPUINFO = Path("/proc/cpuinfo")
TELLING = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
"""Fields that tell processors apart for which LLVM would make different code."""


@cache
def _fields() -> dict[str, str]:
    """Return what Linux says of the first processor; nothing elsewhere."""
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
    """Return the names of the processor's instruction sets, or None where they are not known."""
    fields = _fields()
    return frozenset(fields["flags"].split()) if fields else None


def name() -> str:
    """Return what the processor is called; nothing where that is not known."""
    return _fields().get("model name", "")


def signature() -> tuple[str, ...] | None:
    """Return what tells this processor from others, or None where that is not known."""
    fields = _fields()
    return tuple(fields.get(name, "") for name in TELLING) if fields else None
