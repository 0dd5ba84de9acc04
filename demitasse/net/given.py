"""What a net is made from, as callers give it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from demitasse.backends.storage import STORAGES, Stored
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import NetParameter, Phase, ReadNet, read_net, upgrade_net

__all__ = [
    "choose_seed",
    "choose_storage",
    "folder",
    "need_inference",
    "phase_number",
    "read_source",
    "several",
]


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
    raise ConfigError(message, code=ErrorCode.UNKNOWN, field="phase", got=phase)


def choose_seed(seed: int | None) -> int:
    """Return the seed, or that of the settings; a negative one stands for any."""
    chosen = settings.get("seed") if seed is None else seed
    return int.from_bytes(os.urandom(4), "little") >> 1 if chosen < 0 else int(chosen)


def choose_storage(storage: Stored | None, device: Device, dtype: str) -> Stored:
    """Return how the device is to keep values, or what the settings say of it.

    Raises:
        ConfigError: There is no such way, or the device does not have it.
    """
    chosen: Stored = settings.get("gpu_storage_dtype") if storage is None else storage
    if chosen not in STORAGES:
        message = f"storage must be one of {', '.join(STORAGES)}, not {chosen!r}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="storage", got=chosen)
    asked = "" if storage is not None else f" ({settings.where('gpu_storage_dtype')})"
    if chosen not in device.backend.storages:
        message = (
            f"storage {chosen!r}{asked} is for GPUs; {device} keeps values as they are computed"
        )
        raise ConfigError(message, code=ErrorCode.UNSUPPORTED, field="storage", got=chosen)
    if chosen != "float" and dtype != "float32":
        message = f"storage {chosen!r}{asked} is for nets of float32, not {dtype}"
        raise ConfigError(
            message, code=ErrorCode.CONFLICT, field="storage", got=chosen, dtype=dtype
        )
    return chosen


def need_inference(storage: Stored, phase: str) -> None:
    """Refuse a net that is trained in values of 16 bits.

    Raises:
        ConfigError: It is one.
    """
    if storage != "float" and phase == "TRAIN":
        message = (
            f"storage {storage!r} is for nets of phase TEST: small gradients and updates would be "
            'lost in 16 bits; train with storage "float"'
        )
        raise ConfigError(
            message, code=ErrorCode.CONFLICT, field="storage", got=storage, phase=phase
        )


def several(weights: Any) -> Iterable[Any]:
    """Return files or messages of weights, of which one, several or none may be given."""
    if weights is None:
        return ()
    if isinstance(weights, (str, os.PathLike, NetParameter)):
        return (weights,)
    return tuple(weights)
