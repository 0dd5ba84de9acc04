"""The files that a card names: in its folder or below, and nowhere else.

A card may come from somebody else together with a net. What it names is opened, so it must not
reach other files of whoever runs it.
"""

from __future__ import annotations

from pathlib import Path

from demitasse.core.paths import is_file
from demitasse.errors import ConfigError

__all__ = ["file_inside"]


def file_inside(folder: Path, name: str) -> Path:
    """Return a file of a card's folder.

    Raises:
        ConfigError: It is not there, or it lies elsewhere, perhaps by way of a link.
    """
    try:
        path = folder / name
        lies_within = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a ring of links, a zero byte
        message = f"no file can be called {name!r}: {error}"
        raise ConfigError(message) from None
    if Path(name).is_absolute() or ".." in Path(name).parts or not lies_within:
        message = (
            f"{name!r} lies outside of the card's folder, {folder}; a card names files beside it. "
            "Files elsewhere are named on the command line"
        )
        raise ConfigError(message)
    if not is_file(path):
        message = f"there is no file {name!r} in the card's folder, {folder}"
        raise ConfigError(message)
    return path
