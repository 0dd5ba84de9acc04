"""HTML that notebooks show for nets, blobs, layers and solvers.

Classes import only this module for their ``_repr_html_``. The package's ``__init__`` sets the
renderer, which is loaded when a notebook asks for HTML.
"""

from __future__ import annotations

from importlib import import_module

_renderer: list[str] = []


def set_renderer(module: str, function: str) -> None:
    """Set the function that renders an object, by name."""
    _renderer[:] = [module, function]


def html_of(thing: object) -> str:
    """Return the HTML of a net, a blob, a layer, a solver or a table."""
    module, function = _renderer
    html: str = getattr(import_module(module), function)(thing)
    return html
