"""Several faults of a net in one message."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["listed"]

MOST = 20
"""How many faults one message lists."""


def listed(faults: Sequence[object]) -> str:
    """Return faults, one in each line; of very many the first ones and how many more there are."""
    lines = [str(fault) for fault in faults[:MOST]]
    if len(faults) > MOST:
        lines.append(f"... and {len(faults) - MOST} more")
    return "\n".join(lines)
