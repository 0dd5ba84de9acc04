"""Whether the passes of a net are launched as one, or what stands in the way."""

from __future__ import annotations

from demitasse.core.config import settings
from demitasse.net import Net

__all__ = ["launching"]


def launching(net: Net) -> str:
    """Say in a sentence how its device is given its passes; "" of one that records nothing.

    Args:
        net: A net whose layers are prepared.
    """
    if net.device.backend.recorder is None:
        return ""
    off = "the setting cuda_graphs is off" if settings.get("cuda_graphs") == "off" else ""
    if why := off or net.obstacle():
        return f"Passes are queued kernel by kernel, not launched as one: {why}."
    return "Passes are launched as one once shapes and memories stay."
