"""GPUs as Caffe's ``-gpu`` names them: by number, several with commas between them, or all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from demitasse.training.distributed import Communicator

__all__ = ["gpu_numbers", "gpus_there", "own_gpu"]


def gpu_numbers(text: str) -> list[int]:
    """Return the numbers of the GPUs that a flag names.

    Raises:
        DeviceError: It says ``all`` and there is none; says what is missing.
        click.UsageError: It is neither numbers nor ``all``.
    """
    if text == "all":
        return gpus_there()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        message = f"--gpu takes numbers of GPUs with commas between them, or all, not {text!r}"
        raise click.UsageError(message)
    return list(dict.fromkeys(map(int, parts)))


def gpus_there() -> list[int]:
    """Return the numbers of the GPUs of this machine.

    Raises:
        DeviceError: There is none; says what is missing.
    """
    from demitasse.backends import backend_class
    from demitasse.errors import DeviceError, ErrorCode

    there = [int(name.partition(":")[2]) for name in backend_class("cuda").devices()]
    if not there:
        raise DeviceError(backend_class("cuda").missing(), code=ErrorCode.UNAVAILABLE)
    return there


def own_gpu(named: Sequence[str], connected: Communicator | None) -> str | None:
    """Return the GPU of this process, of those that processes of one machine share out.

    Args:
        named: Those that a flag names, or "cuda" for all that are there.
        connected: The processes; None for this one alone.
    """
    if connected is None or connected.size == 1:
        return named[0] if named else None
    if list(named) in (["cuda"], ["gpu"]):
        named = [f"cuda:{number}" for number in gpus_there()]
    return named[connected.local_rank % len(named)] if named else None
