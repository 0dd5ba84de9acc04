"""Tables and JSON on standard output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from demitasse.escapes import escaped
from demitasse.log import json_ready

__all__ = ["json_text", "print_json", "table"]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows under a header, columns aligned; numbers to the right.

    Floats are shown with four significant digits.
    """
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    right = [
        bool(rows) and all(isinstance(row[i], int | float) or row[i] is None for row in rows)
        for i in range(len(header))
    ]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join(line(cells) for cells in (header, *texts))


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return (
        f"{cell:,}"
        if isinstance(cell, int) and not isinstance(cell, bool)
        else escaped(str(cell), one_line=True)
    )


def print_json(value: Any) -> None:
    """Print ``value`` as JSON."""
    click.echo(json_text(value))


def json_text(value: Any) -> str:
    """Return ``value`` as JSON; numbers that JSON lacks become text, tuples become lists."""
    return json.dumps(json_ready(value), indent=2)
