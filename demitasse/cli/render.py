"""Tables, wrapped text and JSON on standard output."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import click

from demitasse.core.log import json_ready
from demitasse.core.text import escaped


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


GAP = 2
"""Spaces between two columns of a table."""

LEAST = 10
"""Letters of a name that are shown at least, however narrow the terminal is."""

NUMBER_CELL = re.compile(r"[-+]?[\d(\[]|-?(nan|inf)\b|-$|$")
"""How cells begin that hold numbers: sizes, shapes, shares; or nothing."""

HEADER_WORD = re.compile(r"[^\s-]+-?")
"""What a header may be broken into."""


def terminal_width() -> int | None:
    """Return the columns of the terminal that standard output is, or None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def shortened(text: str, most: int) -> str:
    """Return text of at most so many letters: of longer text the middle is left out."""
    if len(text) <= most:
        return text
    end = most // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def fitted_lines(text: str, width: int, *, indent: str = "", at_hyphens: bool = False) -> list[str]:
    """Return text in lines of at most so many letters, broken between words.

    Args:
        text: The text; lines that fit stay as they are.
        width: Letters of a line; a longer word has a line of its own.
        indent: What the further lines of one line begin with.
        at_hyphens: Whether lines may be broken behind hyphens, too.
    """
    lines = []
    for line in text.split("\n"):
        if len(line) <= width:
            lines.append(line)
            continue
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=at_hyphens,
        )
    return lines


def columns_that_fit(columns: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Deal the columns of a table over as few lines as they fit in when they are narrowest.

    Returns:
        For each line, all of about the same width, the indices of its columns.
    """
    least = [_least(column) for column in columns]
    fewest = len(_dealt(least, width))
    evenly = next(w for w in range(1, width + 1) if len(_dealt(least, w)) == fewest)
    return _dealt(least, evenly)


def _dealt(least: Sequence[int], width: int) -> list[list[int]]:
    lines: list[list[int]] = [[]]
    used = 0
    for index, size in enumerate(least):
        if lines[-1] and used + GAP + size > width:
            lines.append([])
            used = GAP  # further lines are indented
        used += size + (GAP if lines[-1] else 0)
        lines[-1].append(index)
    return lines


def widths_that_fit(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths of columns side by side: the widest with names give way first."""
    widths = [max(map(len, column)) for column in columns]
    least = [_least(column) for column in columns]
    room = width - GAP * (len(columns) - 1)
    while sum(widths) > room:
        broad = [i for i in range(len(widths)) if widths[i] > least[i]]
        if not broad:
            break
        widest = max(broad, key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def _least(column: Sequence[str]) -> int:
    """Return the least width of a column: of whole numbers, and of a part of each name."""
    header, *cells = column
    if all(map(NUMBER_CELL.match, cells)):
        parts = [part for cell in cells for part in cell.replace(", ", ",\n").split("\n")]
        return max(map(len, [*parts, *HEADER_WORD.findall(header), ""]))
    return min(max((len(word) for cell in column for word in cell.split()), default=0), LEAST)
