"""Flags that several commands share, and their completion in a shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from demitasse.training.distributed import Communicator

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


def complete_devices(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the devices that are here; of names with commas between them, the last goes on."""
    from demitasse.core.device import available_devices

    del context, param
    before, comma, last = incomplete.rpartition(",")
    return _beginning(last, available_devices(), before + comma)


def complete_files(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell offer files."""
    del context, param
    return [CompletionItem(incomplete, type="file")]


def complete_codes(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the codes of what ``lint`` finds."""
    from demitasse.lint.codes import CODES

    del context, param
    return _beginning(incomplete, list(CODES))


def complete_loggers(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the kinds of loggers, each with its colon."""
    from demitasse.training.tracking.targets import KINDS

    del context, param
    return _beginning(incomplete, [f"{kind}:" for kind in KINDS])


def _beginning(incomplete: str, names: Sequence[str], before: str = "") -> list[CompletionItem]:
    return [CompletionItem(before + name) for name in names if name.startswith(incomplete)]
