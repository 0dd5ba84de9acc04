"""Whether the passes of a net can be recorded, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse.layers import Layer
from demitasse.plan.entry import Entry

__all__ = ["obstacle", "sources"]


def sources(entries: Sequence[Entry]) -> int:
    """Return how many layers at the beginning only bring data in."""
    firsts = (index for index, entry in enumerate(entries) if entry.place.bottom)
    return next(firsts, len(entries))


def obstacle(entries: Sequence[Entry]) -> str:
    """Say which layer keeps passes from being recorded, and why; "" where none does.

    Args:
        entries: Layers whose Steps are prepared.
    """
    first = sources(entries)
    for index, entry in enumerate(entries):
        if why := _of(entry) if index >= first else _of_source(entry):
            return f"{entry.place.called} {why}"
    return ""


def _of_source(entry: Entry) -> str:
    return "brings in what is a loss itself" if entry.layer.loss_weights else ""


def _of(entry: Entry) -> str:
    if not entry.place.bottom:
        return "brings in data behind other layers"
    if entry.layer.dynamic_shapes:
        return "works on the host, or its shapes depend on values"
    if entry.step is None and not (entry.layer.is_alias or _capturable(entry.layer)):
        return "has no step of this device" + (f" ({entry.why})" if entry.why else "")
    return ""


def _capturable(layer: Layer) -> bool:
    """Whether the layer's portable code can be recorded where it is."""
    return layer.device.backend.records_arrays and bool(vars(type(layer)).get("graph_capturable"))
