"""Flags that several verbs have."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from demitasse.cli.completion import complete_devices
from demitasse.cli.gpus import gpu_numbers

__all__ = [
    "BACKEND",
    "FILE",
    "FOLDER",
    "backend_option",
    "device_options",
    "json_option",
    "mismatch_option",
    "overwrite_option",
    "phase_option",
    "shapes_given",
    "split_names",
    "state_options",
    "training_device_options",
]

Function = Callable[..., Any]


class _File(click.Path):
    """A file; an option with an empty name is as none given, as gflags has it."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Return the path, or None."""
        if value == "":
            if isinstance(param, click.Option) and param.required:
                raise click.MissingParameter(ctx=ctx, param=param)
            if isinstance(param, click.Option) and not param.multiple:
                return None
            self.fail("a name is missing: it is empty", param, ctx)
        return super().convert(value, param, ctx)


FILE = _File(path_type=Path)
"""A file; whether it is there is found out by whoever reads it, who says more about it."""

FOLDER = click.Path(path_type=Path, file_okay=False)

BACKEND = click.Choice(["LMDB", "LEVELDB"], case_sensitive=False)
"""Kinds of databases, as ``data_param`` names them; a flag may have them in small letters."""

overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace a database that is there."
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")


mismatch_option = click.option(
    "--on_mismatch",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="What to do with layers of --weights whose parameters do not fit the net.",
)


def device_options(function: Function) -> Function:
    """Add ``--device`` and Caffe's ``--gpu``; the verb gets ``device``, a name or None.

    Where ``--gpu`` names several, the first is meant, as in Caffe.
    """

    @_device_flags
    @wraps(function)
    def with_device(*args: Any, devices: list[str], **kwargs: Any) -> Any:
        return function(*args, device=devices[0] if devices else None, **kwargs)

    return with_device


def training_device_options(function: Function) -> Function:
    """As ``device_options``; but the verb gets ``devices``, a list: all GPUs that are named."""
    return _device_flags(function)


def _device_flags(function: Function) -> Function:
    @click.option(
        "--device",
        metavar="DEVICE",
        shell_complete=complete_devices,
        help="Where to run: cpu, cuda:0, numpy, ...",
    )
    @click.option("--gpu", metavar="ID|all", help="Number of the GPU to run on, as in Caffe.")
    @wraps(function)
    def with_devices(*args: Any, device: str | None, gpu: str | None, **kwargs: Any) -> Any:
        if gpu and device is not None:
            message = "--device and --gpu both say where to run; give one of them"
            raise click.UsageError(message)
        named = [] if device is None else [device]
        return function(*args, devices=_gpus(gpu) if gpu else named, **kwargs)

    return with_devices


def _gpus(gpu: str) -> list[str]:
    return [f"cuda:{number}" for number in gpu_numbers(gpu)]


def state_options(function: Function) -> Function:
    """Add ``--level`` and ``--stage``; the verb gets ``level``, or None, and ``stages``."""

    @click.option("--level", type=int, help="Level of the net's state.")
    @click.option(
        "--stage",
        "stages",
        multiple=True,
        metavar="STAGE[,STAGE]",
        help="Stages of the net's state.",
    )
    @wraps(function)
    def with_state(*args: Any, stages: tuple[str, ...], **kwargs: Any) -> Any:
        return function(*args, stages=split_names(stages), **kwargs)

    return with_state


def phase_option(default: str) -> Callable[[Function], Function]:
    """Add ``--phase``."""
    return click.option(
        "--phase",
        type=click.Choice(["TRAIN", "TEST"], case_sensitive=False),
        default=default,
        show_default=True,
        help="Phase of the net's state.",
    )


def backend_option(
    default: str = "LMDB", help: str = "What kind of database."
) -> Callable[[Function], Function]:
    """Add ``--backend``."""
    return click.option("--backend", type=BACKEND, default=default, show_default=True, help=help)


def split_names(lists: tuple[str, ...]) -> list[str]:
    """Return the names in lists that have commas between them."""
    return [name.strip() for one in lists for name in one.split(",") if name.strip()]


def shapes_given(
    _ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each input that is named, e.g. by "data=1,3,224,224"."""
    found = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        parts = [part.strip() for part in sizes.split(",")]
        if not name or not all(part.isdigit() for part in parts):
            message = f"{text!r} is no name and sizes, such as data=1,3,224,224"
            raise click.BadParameter(message)
        found[name] = tuple(map(int, parts))
    return found
