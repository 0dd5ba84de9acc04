"""What notebooks show of an object: made by a room above, which is loaded when a notebook asks."""

from __future__ import annotations

from importlib import import_module

__all__ = ["html_of"]


def html_of(thing: object) -> str:
    """Return what a notebook shows of a net, a blob, a layer, a solver or a table, as HTML."""
    shown: str = import_module("demitasse.notebook").html_of(thing)
    return shown
