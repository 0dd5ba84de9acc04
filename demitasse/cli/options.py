"""Flags that several commands share, and their completion in a shell."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from demitasse.cli.gflags import RenamedOption

if TYPE_CHECKING:
    from demitasse.training.distributed import Communicator

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


class Float(click.types.FloatParamType):
    """A finite number: click accepts ``nan`` and ``inf``, also within any bounds."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class FloatRange(Float, click.FloatRange):
    """A finite number within bounds."""


FLOAT = Float()


def complete_devices(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a device, the last in a comma-separated list."""
    from demitasse.core.device import available_devices

    del context, param
    before, comma, last = incomplete.rpartition(",")
    return _matching(last, available_devices(), before + comma)


def complete_files(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a file, by the shell."""
    del context, param
    return [CompletionItem(incomplete, type="file")]


def complete_codes(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a code of ``lint``."""
    from demitasse.lint.findings import CODES

    del context, param
    return _matching(incomplete, list(CODES))


def complete_loggers(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a kind of logger, with its colon."""
    from demitasse.training.tracking.logger import KINDS

    del context, param
    return _matching(incomplete, [f"{kind}:" for kind in KINDS])


def _matching(incomplete: str, names: Sequence[str], before: str = "") -> list[CompletionItem]:
    return [CompletionItem(before + name) for name in names if name.startswith(incomplete)]


def option_group(name: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Return a decorator that adds options and passes their values as one argument.

    Args:
        name: Name of the argument.
        make: Function of the options' values, by name.
        options: Decorators of click, in the order of the help.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            values = {one: kwargs.pop(one) for one in names}
            return function(*args, **{name: make(**values)}, **kwargs)

        params: list[click.Parameter] = call.__dict__.setdefault("__click_params__", [])
        before = len(params)
        for option in reversed(options):
            option(call)
        names = [str(one.name) for one in params[before:]]
        return call

    return decorate


class _File(click.Path):
    """A file; an option with an empty value counts as not given, as in gflags."""

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
            self.fail("got an empty name, expected a file", param, ctx)
        return super().convert(value, param, ctx)


FILE = _File(path_type=Path)
"""A file; click does not check it, because the readers' errors say more."""

FOLDER = click.Path(path_type=Path, file_okay=False)

BACKEND = click.Choice(["LMDB", "LEVELDB"], case_sensitive=False)
"""Kinds of databases, as in ``data_param``; flags may use lower case."""

overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an existing database.")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")


mismatch_option = click.option(
    "--on_mismatch",
    cls=RenamedOption,
    old_values={"error": "raise"},
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="Raise an error for layers of --weights whose shapes differ, or skip these layers.",
)


def device_option(help: str = "Device to run on: cpu, cuda:0, numpy, ...") -> Decorator:
    """Add ``--device`` alone."""
    return click.option("--device", metavar="DEVICE", shell_complete=complete_devices, help=help)


def weights_option(help: str, name: str = "--weights", *, required: bool = False) -> Decorator:
    """Add a flag for one or more files of weights; see ``split_names``."""
    return click.option(
        name, multiple=True, required=required, metavar="FILE[,FILE]",
        shell_complete=complete_files, help=help,
    )  # fmt: skip


def _devices(device: str | None, gpu: str | None) -> list[str]:
    if gpu and device is not None:
        message = "got --device and --gpu, expected one of them"
        raise click.UsageError(message)
    if gpu:
        return _gpus(gpu)
    return [] if device is None else [device]


def _gpus(gpu: str) -> list[str]:
    return [f"cuda:{number}" for number in gpu_numbers(gpu)]


def _first_device(device: str | None, gpu: str | None) -> str | None:
    return next(iter(_devices(device, gpu)), None)


_device_flags = (
    device_option(),
    click.option("--gpu", metavar="ID|all", help="GPU to run on, by number, as in Caffe."),
)

device_options = option_group("device", _first_device, *_device_flags)
"""Adds ``--device`` and Caffe's ``--gpu``; the command gets ``device``, a name or None.

Of several GPUs, the first is used, as in Caffe.
"""

training_device_options = option_group("devices", _devices, *_device_flags)
"""Adds the flags of ``device_options``; the command gets ``devices``, all GPUs of the flag."""


def state_options(function: Function) -> Function:
    """Add ``--level`` and ``--stage``; the command gets ``level``, or None, and ``stages``."""
    stage = click.option(
        "--stage",
        "stages",
        multiple=True,
        metavar="STAGE[,STAGE]",
        callback=lambda _ctx, _param, lists: split_names(lists),
        help="Stages of the net's state.",
    )
    return click.option("--level", type=int, help="Level of the net's state.")(stage(function))


def phase_option(default: str) -> Decorator:
    """Add ``--phase``."""
    return click.option(
        "--phase",
        type=click.Choice(["TRAIN", "TEST"], case_sensitive=False),
        default=default,
        show_default=True,
        help="Phase of the net's state.",
    )


def backend_option(default: str = "LMDB", help: str = "Kind of database.") -> Decorator:
    """Add ``--backend``."""
    return click.option("--backend", type=BACKEND, default=default, show_default=True, help=help)


def split_names(lists: tuple[str, ...]) -> list[str]:
    """Return the names in comma-separated lists."""
    return [name.strip() for one in lists for name in one.split(",") if name.strip()]


def parse_shapes(
    _ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Return shapes by input; a text is e.g. "data=1,3,224,224"."""
    found = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        parts = [part.strip() for part in sizes.split(",")]
        if not name or not all(part.isdigit() for part in parts):
            message = f"got {text!r}, expected a name and sizes, such as data=1,3,224,224"
            raise click.BadParameter(message)
        found[name] = tuple(map(int, parts))
    return found


def shape_option(help_text: str, metavar: str = "BLOB=N,C,H,W") -> Decorator:
    """Return the flag ``--shape``, whose shapes a command gets as ``shapes``."""
    return click.option(
        "--shape",
        "shapes",
        callback=parse_shapes,
        multiple=True,
        metavar=metavar,
        help=help_text,
    )


def gpu_numbers(text: str) -> list[int]:
    """Return the numbers of the GPUs in a flag.

    Raises:
        DeviceError: The flag is ``all``, and the machine has no GPU.
        click.UsageError: The flag is neither numbers nor ``all``.
    """
    if text == "all":
        return available_gpus()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        message = f"--gpu takes numbers of GPUs with commas between, or all; got {text!r}"
        raise click.UsageError(message)
    return list(dict.fromkeys(map(int, parts)))


def available_gpus() -> list[int]:
    """Return the numbers of the GPUs of this machine.

    Raises:
        DeviceError: The machine has no GPU; the message says why.
    """
    from demitasse.backends import backend_class
    from demitasse.errors import DeviceError, ErrorCode

    there = [int(name.partition(":")[2]) for name in backend_class("cuda").devices()]
    if not there:
        raise DeviceError(backend_class("cuda").missing(), code=ErrorCode.UNAVAILABLE)
    return there


def local_gpu(named: Sequence[str], connected: Communicator | None) -> str | None:
    """Return the GPU of this process: each local rank uses its own GPU.

    Args:
        named: The GPUs of a flag, or "cuda" for all GPUs of the machine.
        connected: The group of processes; None for a single process.
    """
    if connected is None or connected.size == 1:
        return named[0] if named else None
    if list(named) in (["cuda"], ["gpu"]):
        named = [f"cuda:{number}" for number in available_gpus()]
    return named[connected.local_rank % len(named)] if named else None
