"""What a net is made from, as callers give it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from demitasse.config import settings
from demitasse.errors import ConfigError
from demitasse.proto import NetParameter, Phase, ReadNet, read_net, upgrade_net

__all__ = ["choose_seed", "folder", "phase_number", "read_source", "several"]


def read_source(source: str | os.PathLike[str] | NetParameter, lenient: bool) -> ReadNet:
    """Return the current form of a file, or of a copy of a message."""
    if isinstance(source, NetParameter):
        param = NetParameter()
        param.CopyFrom(source)
        upgrade_net(param)
        return ReadNet(param)
    return read_net(source, lenient=lenient)


def folder(base_dir: str | os.PathLike[str] | None, file: str) -> Path | None:
    """Return where named files are looked for: a folder, or that of the net's file if it has one.

    Args:
        base_dir: The folder, or None.
        file: The net's file, or an empty string.
    """
    if base_dir is not None:
        return Path(base_dir)
    return Path(file).parent if file else None


def phase_number(phase: str | int) -> Any:
    """Return the number of a phase given by name or number.

    Raises:
        ConfigError: There is no such phase.
    """
    known = dict(Phase.items())
    if phase in known:
        return known[str(phase)]
    if phase in known.values():
        return phase
    message = f"phase must be TRAIN or TEST, not {phase!r}"
    raise ConfigError(message)


def choose_seed(seed: int | None) -> int:
    """Return the seed, or that of the settings; a negative one stands for any."""
    chosen = settings.get("seed") if seed is None else seed
    return secrets.randbits(31) if chosen < 0 else int(chosen)


def several(weights: Any) -> Iterable[Any]:
    """Return files or messages of weights, of which one, several or none may be given."""
    if weights is None:
        return ()
    if isinstance(weights, (str, os.PathLike, NetParameter)):
        return (weights,)
    return tuple(weights)
