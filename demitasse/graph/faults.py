"""Several faults of a net in one error."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse.errors import DemitasseError, NetError

MOST = 20
"""Number of faults that one message lists."""


def listed(faults: Sequence[object]) -> str:
    """Return one line per fault; beyond 20 faults, the last line is the number of the others."""
    lines = [str(fault) for fault in faults[:MOST]]
    if len(faults) > MOST:
        lines.append(f"... and {len(faults) - MOST} more")
    return "\n".join(lines)


def raise_faults(faults: Sequence[DemitasseError]) -> None:
    """Raise one error for all faults of a net.

    Args:
        faults: The faults, in order. Their code is the error's where all have the same.

    Raises:
        DemitasseError: There is one fault: that one.
        NetError: There are several; its message lists them.
    """
    if len(faults) == 1:
        raise faults[0]
    if faults:
        codes = {fault.code for fault in faults}
        code = codes.pop() if len(codes) == 1 else None
        raise NetError(listed(faults), code=code, faults=[fault.details for fault in faults])
