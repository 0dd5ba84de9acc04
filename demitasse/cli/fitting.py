"""Text brought to a terminal's width: words go to the next line, long names lose their middle.

What goes to a file or a pipe stays as wide as it is, for the programs that read it.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

__all__ = ["columns_that_fit", "fitted_lines", "shortened", "terminal_width", "widths_that_fit"]

GAP = 2
"""Spaces between two columns of a table."""

LEAST = 10
"""Letters of a name that are shown at least, however narrow the terminal is."""

NUMBER = re.compile(r"[-+]?[\d(\[]|-?(nan|inf)\b|-$|$")
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
    if all(map(NUMBER.match, cells)):
        parts = [part for cell in cells for part in cell.replace(", ", ",\n").split("\n")]
        return max(map(len, [*parts, *HEADER_WORD.findall(header), ""]))
    return min(max((len(word) for cell in column for word in cell.split()), default=0), LEAST)
