"""Where in a solver's file the field stands that an error is about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demitasse.core.paths import read_text
from demitasse.errors import ConfigError

__all__ = ["fields_of"]


@contextmanager
def fields_of(file: Path) -> Iterator[None]:
    """Name the file, and the line where there is one, in errors about fields of a solver."""
    try:
        yield
    except ConfigError as error:
        if not error.fields:
            raise
        line = next(filter(None, (_line(file, name) for name in error.fields)), None)
        raise (error.at(str(file)) if line is None else error.from_line(f"{file}:{line}")) from None


def _line(file: Path, field: str) -> int | None:
    """Return the line, from 1, on which a field is given."""
    given = re.compile(rf"\s*{re.escape(field)}\s*:")
    try:
        lines = read_text(file, errors="replace").split("\n")
    except OSError:
        return None
    return next((n for n, line in enumerate(lines, 1) if given.match(line)), None)
