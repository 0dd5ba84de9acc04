"""Tables, wrapped text and JSON on standard output."""

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import Any

from demitasse.cli.errors import echo
from demitasse.core.log import json_ready
from demitasse.core.text import escaped


def show(text: str) -> None:
    """Print text; wrap lines to the width of a terminal."""
    width = terminal_width()
    echo(text if width is None else "\n".join(fitted_lines(text, width, indent="  ")))


def table(
    header: Sequence[str], rows: Sequence[Sequence[object]], *, width: int | None = None,
    whole: Collection[str] = (),
) -> str:  # fmt: skip
    """Return rows under a header, columns aligned, numbers right-aligned.

    Floats have four significant digits. In a narrow terminal, cells wrap and names are shortened in
    the middle, except in the columns ``whole``; if the columns still do not fit, each row takes
    several lines. The width is by default the terminal's, without a terminal unlimited.
    """
    from demitasse.pages.page import number_columns

    texts = [list(header), *([_text(cell) for cell in row] for row in rows)]
    columns = [list(column) for column in zip(*texts, strict=True)]
    numbers = number_columns(rows)
    right = [i in numbers for i in range(len(header))]
    width = terminal_width() if width is None else width
    if width is None:
        widths = [max(map(len, column)) for column in columns]
        return "\n".join(_line(cells, widths, right) for cells in texts)
    lines: list[str] = []
    least = [_least(column, whole=column[0] in whole) for column in columns]
    # the fewest lines for a row, filled about evenly
    fewest = len(_distribute(least, width))
    evenly = next(w for w in range(1, width + 1) if len(_distribute(least, w)) == fewest)
    parts = _distribute(least, evenly)
    sizes = [
        _widths_that_fit(
            [columns[i] for i in part], [least[i] for i in part], width - (GAP if n else 0)
        )
        for n, part in enumerate(parts)
    ]
    for row, cells in enumerate(texts):
        for n, (part, widths) in enumerate(zip(parts, sizes, strict=True)):
            sides = [right[i] for i in part]
            wrapped = [
                [shortened(line, size) for line in fitted_lines(cells[i], size, at_hyphens=not row)]
                or [""]
                for i, size in zip(part, widths, strict=True)
            ]
            for line in zip_longest(*wrapped, fillvalue=""):
                lines.append((("  " if n else "") + _line(line, widths, sides)).rstrip())
    return "\n".join(lines)


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
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return escaped(str(cell), one_line=True)


def print_json(value: Any) -> None:
    """Print a value as JSON; NaN and infinities become text, tuples become lists."""
    echo(json.dumps(json_ready(value), indent=2))


GAP = 2
"""Spaces between two columns of a table."""

LEAST = 10
"""Least width of a column of names."""

NUMBER_CELL = re.compile(r"[-+]?[\d(\[]|-?(nan|inf)\b|-$|$")
"""Start of a cell with a number, size, shape or share; empty cells match, too."""

HEADER_WORD = re.compile(r"[^\s-]+-?")
"""Parts of a header, between which a line may break."""


def terminal_width() -> int | None:
    """Return the width of the terminal on standard output; None without a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def shortened(text: str, most: int) -> str:
    """Return text of at most ``most`` characters; the middle of longer text becomes an ellipsis."""
    if len(text) <= most:
        return text
    end = most // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def fitted_lines(text: str, width: int, *, indent: str = "", at_hyphens: bool = False) -> list[str]:
    """Return text in lines of at most ``width`` characters, broken between words.

    Lines that fit are not changed, and a longer word has a line of its own. ``indent`` starts the
    further lines of a wrapped line; ``at_hyphens`` breaks lines after hyphens, too.
    """
    lines = []
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=at_hyphens
    )
    for line in text.split("\n"):
        lines += [line] if len(line) <= width else wrapper.wrap(line)
    return lines


def _distribute(least: Sequence[int], width: int) -> list[list[int]]:
    """Return the indices of the columns on each line, at their least widths."""
    lines: list[list[int]] = [[]]
    used = 0
    for index, size in enumerate(least):
        if lines[-1] and used + GAP + size > width:
            lines.append([])
            used = GAP  # further lines are indented
        used += size + (GAP if lines[-1] else 0)
        lines[-1].append(index)
    return lines


def _widths_that_fit(
    columns: Sequence[Sequence[str]], least: Sequence[int], width: int
) -> list[int]:
    """Return the widths of columns on one line; the widest columns of names shrink first."""
    widths = [max(map(len, column)) for column in columns]
    room = width - GAP * (len(columns) - 1)
    while sum(widths) > room:
        broad = [i for i in range(len(widths)) if widths[i] > least[i]]
        if not broad:
            break
        widths[max(broad, key=lambda i: widths[i])] -= 1
    return widths


def _least(column: Sequence[str], *, whole: bool) -> int:
    """Return the least width of a column: its numbers unbroken, its names shortened or whole."""
    header, *cells = column
    if all(map(NUMBER_CELL.match, cells)):
        parts = [part for cell in cells for part in cell.replace(", ", ",\n").split("\n")]
        return max(map(len, [*parts, *HEADER_WORD.findall(header), ""]))
    longest = max((len(word) for cell in column for word in cell.split()), default=0)
    return longest if whole else min(longest, LEAST)
