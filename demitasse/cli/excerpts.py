"""Lines of prototxt files below the errors that name them, with a mark as compilers show it."""

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from demitasse.core.paths import read_text
from demitasse.core.text import escaped
from demitasse.errors import DemitasseError, PrototxtError

AROUND, WIDE = 60, 200
"""Columns of a long line on each side of the mark, and columns where there is no terminal."""

FRAME = "12345 | …"
"""Text before a line; as many columns stay free after the line."""

LONGEST_LAYER = 200
"""Lines of a layer that are searched for the field of an error."""

PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?(?=$|: )")

NAMED = re.compile(r"'([^']+)'|\b([a-z]+(?:_[a-z]+)+)\b")
"""Quoted names in a message, and names of fields: words with underscores."""

ENDINGS = {".prototxt", ".pbtxt", ".textproto"}
"""Extensions of files whose lines are shown: a solver could name a secret file as its net."""

WHERE = re.compile(r"^.*layer '[^']*' \([^)]*\): ")
"""The layer at the start of a message."""

ORIGIN = re.compile(r"  \[(.+):(\d+)\]$")
"""File and line of the first line of a layer, at the end of a message."""


def with_excerpts(error: BaseException) -> str:
    """Return the message of an error, with the prototxt line below each place that it names."""
    text = str(error)
    if not isinstance(error, DemitasseError):
        return text
    source = error.source if isinstance(error, PrototxtError) else None
    place = re.compile(rf"{re.escape(source)}:(\d+):(\d+): " if source else "(?!)")
    shown: list[str] = []
    for line in text.split("\n"):
        shown.append(line)
        if source and (at := place.search(line)):
            shown += _excerpt(_prototxt_lines(source), int(at[1]) - 1, int(at[2]) - 1, 1)
        elif at := ORIGIN.search(line):
            shown += _layer_excerpt(_prototxt_lines(at[1]), int(at[2]) - 1, line[: at.start()])
    return "\n".join(shown)


def excerpt_of(where: str, message: str) -> list[str]:
    """Return the prototxt line of a finding, with a mark; ``where`` is "FILE:LINE[:COLUMN]"."""
    at = PLACE.match(where)
    if at is None:
        return []
    lines, line = _prototxt_lines(at["file"]), int(at["line"]) - 1
    if at["column"]:
        return _excerpt(lines, line, int(at["column"]) - 1, 1)
    return _layer_excerpt(lines, line, message)


def _prototxt_lines(source: str) -> list[str]:
    """Return the lines of a prototxt; nothing of files with other extensions."""
    if Path(source).suffix not in ENDINGS:
        return []
    try:
        return read_text(source, errors="replace").split("\n")
    except OSError:
        return []


def _layer_excerpt(lines: Sequence[str], begin: int, message: str) -> list[str]:
    """Return the line of a layer that a message names; the layer starts at line ``begin``."""
    if begin >= len(lines):
        return []
    layer = range(begin, _end_of(lines, begin))
    for name in _names(message):
        word = re.compile(rf"(?<![\w/]){re.escape(name)}(?![\w/])")
        for index in layer:
            if at := word.search(lines[index].partition("#")[0]):
                return _excerpt(lines, index, at.start(), len(name))
    return _excerpt(lines, begin, len(lines[begin]) - len(lines[begin].lstrip()), 1)


def _names(message: str) -> Iterator[str]:
    said = WHERE.sub("", message)
    first, colon, _ = said.partition(": ")
    if colon and " " not in first:  # a file name in the layer
        yield first
    for quoted, field in NAMED.findall(said):
        yield quoted or field


def _end_of(lines: Sequence[str], begin: int) -> int:
    """Return the line after the brace that closes a layer."""
    open_, seen = 0, False
    for index in range(begin, min(begin + LONGEST_LAYER, len(lines))):
        text = lines[index].partition("#")[0]
        open_ += text.count("{") - text.count("}")
        seen = seen or "{" in text
        if seen and open_ <= 0:
            return index + 1
    return min(begin + LONGEST_LAYER, len(lines))


def _excerpt(lines: Sequence[str], line: int, column: int, width: int) -> list[str]:
    """Return a line with its number, and a mark below the line; nothing for an empty line."""
    if line >= len(lines) or not lines[line].strip():
        return []
    text = lines[line].replace("\t", " ")
    around = min(AROUND, shutil.get_terminal_size((WIDE, 1)).columns // 2 - len(FRAME))
    begin = max(0, column - around) if len(text) > 2 * around else 0
    cut = text[begin : begin + 2 * around].rstrip()
    before = escaped(cut[: column - begin], one_line=True)  # escapes are longer than characters
    shown = before + escaped(cut[column - begin :], one_line=True)
    if begin:
        shown, before = f"…{shown}", f"…{before}"
    if begin + len(cut) < len(text.rstrip()):
        shown += "…"
    number = f"{line + 1:>5}"
    return [f"{number} | {shown}", f"{'':>5} | {' ' * len(before)}{'^' * width}"]
