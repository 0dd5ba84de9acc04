"""Cache key of a module of kernels, computed without generating it.

Python takes longer to write a module than to load LLVM's library. A module's name is unique in a
process, so the name and the sources of the generators identify the module's contents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from demitasse.core.hashing import digest

SOURCES = Path(__file__).parents[1]
"""Sources of the kernel generators."""


def cache_key(name: str, write: Callable[[Any], None]) -> str | None:
    """Return the key of a module's contents, or None if the contents cannot be known.

    They cannot if a function from outside ``SOURCES`` takes part, as in a test, or if the source
    files are missing.

    Args:
        name: Name of the module, unique in the process.
        write: Writes the module's kernels.
    """
    sources = _digest()
    if not sources or not all(_is_generator(function) for function in _parts(write)):
        return None
    return f"{name} {sources} numpy {np.__version__}"  # NumPy computes some constants


@cache
def _digest() -> str:
    """Return a digest of the generators' sources; "" if a file cannot be read."""
    try:
        return digest(
            b"".join(
                f"{path.relative_to(SOURCES)}".encode() + b"\0" + path.read_bytes()
                for path in sorted(SOURCES.rglob("*.py"))
            )
        )
    except OSError:
        return ""


def _is_generator(function: FunctionType) -> bool:
    return Path(function.__code__.co_filename).is_relative_to(SOURCES)


def _parts(value: object) -> Iterator[FunctionType]:
    """Yield a function and the functions in its closure."""
    if isinstance(value, partial):
        yield from _parts(value.func)
        for argument in (*value.args, *value.keywords.values()):
            yield from _parts(argument)
    elif isinstance(value, FunctionType):
        yield value
        for cell in value.__closure__ or ():
            yield from _parts(cell.cell_contents)
