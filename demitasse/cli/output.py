"""Tables and JSON on standard output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from demitasse.cli.fitting import (
    columns_that_fit,
    fitted_lines,
    shortened,
    terminal_width,
    widths_that_fit,
)
from demitasse.core.log import json_ready
from demitasse.core.text import escaped

__all__ = ["json_text", "print_json", "show", "table"]


def show(text: str) -> None:
    """Print text; on a terminal in lines that fit into it, broken between words."""
    width = terminal_width()
    click.echo(text if width is None else "\n".join(fitted_lines(text, width, indent="  ")))


def table(
    header: Sequence[str], rows: Sequence[Sequence[object]], *, width: int | None = None
) -> str:
    """Return rows under a header, columns aligned; numbers to the right.

    Floats are shown with four significant digits. In a narrow terminal cells go on in the next
    line, and names lose their middle; where that does not suffice each row takes several lines.

    Args:
        header: Names of the columns.
        rows: The cells.
        width: Letters of a line; by default those of the terminal, and any number elsewhere.
    """
    texts = [list(header), *([_text(cell) for cell in row] for row in rows)]
    columns = [list(column) for column in zip(*texts, strict=True)]
    right = [
        bool(rows) and all(isinstance(row[i], int | float) or row[i] is None for row in rows)
        for i in range(len(header))
    ]
    width = terminal_width() if width is None else width
    if width is None:
        widths = [max(map(len, column)) for column in columns]
        return "\n".join(_line(cells, widths, right) for cells in texts)
    lines: list[str] = []
    parts = columns_that_fit(columns, width)
    sizes = [
        widths_that_fit([columns[i] for i in part], width - (2 if n else 0))
        for n, part in enumerate(parts)
    ]
    for row, cells in enumerate(texts):
        for n, (part, widths) in enumerate(zip(parts, sizes, strict=True)):
            sides = [right[i] for i in part]
            for line in _folded([cells[i] for i in part], widths, header=row == 0):
                lines.append((("  " if n else "") + _line(line, widths, sides)).rstrip())
    return "\n".join(lines)


def _folded(cells: Sequence[str], widths: Sequence[int], *, header: bool) -> list[list[str]]:
    """Return the lines of a row whose cells go on in the next line where they are too wide."""
    folded = [
        [shortened(line, width) for line in fitted_lines(cell, width, at_hyphens=header)] or [""]
        for cell, width in zip(cells, widths, strict=True)
    ]
    height = max(map(len, folded))
    return [[cell[n] if n < len(cell) else "" for cell in folded] for n in range(height)]


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(padded).rstrip()


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
