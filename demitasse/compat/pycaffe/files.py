"""Names of files, as callers give them."""

from __future__ import annotations

import os

__all__ = ["Path", "path_of"]

Path = str | bytes | os.PathLike[str]


def path_of(given: Path) -> str:
    """Return the name of a file as text; bytes are decoded as the system's file names are."""
    return os.fsdecode(given)
