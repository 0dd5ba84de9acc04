"""What notebooks show of an object: made by a part above all those that ask here.

So nets and blobs have a ``_repr_html_`` and import nothing for it. The package's ``__init__`` says
who makes it, which is loaded when a notebook asks.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["html_of", "made_by"]

_maker: list[str] = []


def made_by(module: str, function: str) -> None:
    """Say which function makes HTML of an object."""
    _maker[:] = [module, function]


def html_of(thing: object) -> str:
    """Return what a notebook shows of a net, a blob, a layer, a solver or a table, as HTML."""
    module, function = _maker
    shown: str = getattr(import_module(module), function)(thing)
    return shown
