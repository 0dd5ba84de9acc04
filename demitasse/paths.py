"""Find the files that prototxts name."""

from __future__ import annotations

from pathlib import Path

__all__ = ["resolve"]


def resolve(name: str, base: Path | None = None) -> Path:
    """Return where the file or folder ``name`` is.

    Caffe looks in the working directory only. We look there first, so that its command lines
    keep working, and then beside the prototxt that names the file, so that a folder can be
    used from anywhere.

    Args:
        name: The path as written.
        base: Folder of the file that names it, or None.

    Returns:
        The first of the two that exists; the one in the working directory when neither does, so
        that the error of whoever opens it shows the path as written.
    """
    path = Path(name)
    if not path.is_absolute() and not path.exists() and base is not None:
        beside = base / path
        if beside.exists() or beside.parent.is_dir():
            return beside if beside.exists() else path
    return path
