"""Find the files that prototxts name."""

from __future__ import annotations

from pathlib import Path

from demitasse.errors import ConfigError

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

    Raises:
        ConfigError: The name holds a zero byte, which no name can.
    """
    if "\0" in name:
        message = f"{name!r} is no name of a file"
        raise ConfigError(message)
    path = Path(name)
    if not path.is_absolute() and not _exists(path) and base is not None:
        beside = base / path
        return beside if _exists(beside) else path
    return path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # e.g. a name longer than names can be
        return False
