"""Pieces of HTML for notebooks: all text escaped, legible on light and on dark ground."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from demitasse.core.text import escaped

__all__ = ["folded", "framed", "heading", "note", "table", "text"]

STYLE = (
    "<style>"
    ".demitasse{font:13px/1.45 system-ui,sans-serif;max-width:100%;overflow-x:auto}"
    ".demitasse h4{margin:.2em 0 .4em;font-size:1.05em}"
    ".demitasse table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.3em 0}"
    ".demitasse th,.demitasse td{padding:.15em .7em;border:0;border-bottom:1px solid #8886;"
    "text-align:left!important;background:none;color:inherit}"
    ".demitasse .number{text-align:right!important}"
    ".demitasse summary{cursor:pointer}"
    ".demitasse .note{opacity:.7}"
    ".demitasse .drawing{background:#fff;width:fit-content;max-width:100%;max-height:46em;"
    "overflow:auto}"
    ".demitasse .pixels{image-rendering:pixelated;background:#888}"
    ".demitasse .side{display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start}"
    "</style>"
)
"""Colours are those of the notebook, which has light and dark ones of its own."""


def text(value: str) -> str:
    """Return text as HTML: its marks, its control characters and its ends of lines escaped."""
    return escape(escaped(value, one_line=True))


def framed(*parts: str) -> str:
    """Return parts as one piece."""
    return f'<div class="demitasse">{STYLE}{"".join(parts)}</div>'


def heading(value: str) -> str:
    """Return a heading."""
    return f"<h4>{text(value)}</h4>"


def note(value: str) -> str:
    """Return a line in smaller weight."""
    return f'<div class="note">{text(value)}</div>'


def folded(title: str, content: str, *, is_open: bool = False) -> str:
    """Return what is shown when its title is clicked."""
    state = " open" if is_open else ""
    return f"<details{state}><summary>{text(title)}</summary>{content}</details>"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; columns of numbers to the right. None is an empty cell."""
    right = [
        bool(rows) and all(isinstance(row[i], int | float) or row[i] is None for row in rows)
        for i in range(len(header))
    ]

    def line(cells: Sequence[object], tag: str) -> str:
        parts = zip(cells, right, strict=True)
        return "".join(
            f"<{tag}{' class=number' if number else ''}>{text(_shown(cell))}</{tag}>"
            for cell, number in parts
        )

    head = f"<thead><tr>{line(header, 'th')}</tr></thead>" if any(header) else ""
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _shown(cell: object) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return str(cell)
        case float():
            return f"{cell:.4g}"
        case int():
            return f"{cell:,}"
    return str(cell)
