"""Cache key of a module of kernels, computed without generating it.

To write a module takes Python longer than LLVM's library takes to load. Its name tells one from all
others of a process; so its name and the code that writes it say what it will be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from demitasse.core.hashing import digest

__all__ = ["recipe"]

SOURCES = Path(__file__).parents[1]
"""Sources of the kernel generators."""


def recipe(name: str, write: Callable[[Any], None]) -> str | None:
    """Return what a module is made from, or None where that is not known.

    It is not where functions of other places take part, as in a test, or our sources are not there.

    Args:
        name: Of the module; no other one of the process has it.
        write: Writes its kernels.
    """
    sources = _digest()
    if not sources or not all(_is_ours(function) for function in _parts(write)):
        return None
    return f"{name} {sources} numpy {np.__version__}"  # which computes a few constants


@cache
def _digest() -> str:
    """Return a digest of our sources; nothing where one cannot be read."""
    try:
        return digest(
            b"".join(
                f"{path.relative_to(SOURCES)}".encode() + b"\0" + path.read_bytes()
                for path in sorted(SOURCES.rglob("*.py"))
            )
        )
    except OSError:
        return ""


def _is_ours(function: FunctionType) -> bool:
    return Path(function.__code__.co_filename).is_relative_to(SOURCES)


def _parts(value: object) -> Iterator[FunctionType]:
    """Yield a function and those that it holds in its closure."""
    if isinstance(value, partial):
        yield from _parts(value.func)
        for argument in (*value.args, *value.keywords.values()):
            yield from _parts(argument)
    elif isinstance(value, FunctionType):
        yield value
        for cell in value.__closure__ or ():
            yield from _parts(cell.cell_contents)
