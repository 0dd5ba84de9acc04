"""Options and flags that several commands share, and their completion in a shell."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from demitasse.cli.errors import fail
from demitasse.cli.gflags import RenamedOption

if TYPE_CHECKING:
    from demitasse.training.distributed import Communicator

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


def option(
    names: str, help: str, type: Any = None, default: Any = None, **settings: Any
) -> Decorator:
    """Return the decorator that adds an option.

    Args:
        names: Flags, and the name of the parameter if it differs, separated by spaces.
        help: Text of the help.
        type: Type of click; a list for a choice of words.
        default: The default, which the help shows; or its text does, as "[default: ...]".
        settings: Further arguments of ``click.option`` and ``RenamedOption``.
    """
    if isinstance(type, list):
        type = click.Choice(type)
    if default is not None:
        settings = {"default": default, "show_default": "[default: " not in help, **settings}
    if "old" in settings or "old_values" in settings:
        settings["cls"] = RenamedOption
    return click.option(*names.split(), type=type, help=help, **settings)


def switch(names: str, help: str, **settings: Any) -> Decorator:
    """Return the decorator that adds an option without a value; see ``option``."""
    return option(names, help, is_flag=True, **settings)


def option_group(name: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Return a decorator that adds options, in the order of the help.

    The command gets one argument, ``name``: the result of ``make`` for the values by name.
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


# -- types -------------------------------------------------------------------------------------


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


class _File(click.Path):
    """A file; an option with an empty value counts as not given, as in gflags."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # fmt: skip
        """Return the path, or None."""
        if value == "":
            if isinstance(param, click.Option) and param.required:
                raise click.MissingParameter(ctx=ctx, param=param)
            if isinstance(param, click.Option) and not param.multiple:
                return None
            self.fail("got an empty name, expected a file", param, ctx)
        return super().convert(value, param, ctx)


FLOAT = Float()

POSITIVE = click.IntRange(min=1)

FILE = _File(path_type=Path)
"""A file; click does not check it, because the readers' errors say more."""

FOLDER = click.Path(path_type=Path, file_okay=False)

BACKEND = click.Choice(["LMDB", "LEVELDB"], case_sensitive=False)
"""Kinds of databases, as in ``data_param``; flags may use lower case."""


def split_names(*lists: str) -> list[str]:
    """Return the names in comma-separated lists."""
    return [name.strip() for one in lists for name in one.split(",") if name.strip()]


def split_values(_ctx: click.Context, _param: click.Parameter, lists: Sequence[str]) -> list[str]:
    """Return the names in the values of a flag; a callback of click."""
    return split_names(*lists)


def _shapes(
    _ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Return shapes by input; a text is e.g. "data=1,3,224,224"."""
    found = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        parts = [part.strip() for part in sizes.split(",")]
        if not name or not all(part.isdecimal() for part in parts):
            message = f"got {text!r}, expected a name and sizes, such as data=1,3,224,224"
            raise click.BadParameter(message)
        found[name] = tuple(map(int, parts))
    return found


# -- completion --------------------------------------------------------------------------------


def _completion(names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """Return the completion of a name, or of the last name in a list with commas."""

    def complete(
        _context: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + name) for name in names() if name.startswith(last)]

    return complete


@_completion
def complete_devices() -> Iterable[str]:
    """Return the names of the devices."""
    from demitasse.core.device import available_devices

    return available_devices()


@_completion
def complete_codes() -> Iterable[str]:
    """Return the codes of ``lint``."""
    from demitasse.lint.findings import CODES

    return CODES


@_completion
def complete_loggers() -> Iterable[str]:
    """Return the kinds of loggers, with their colons."""
    from demitasse.training.tracking.logger import MAKERS

    return [f"{kind}:" for kind in MAKERS]


def _complete_files(
    _context: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a file, by the shell."""
    return [CompletionItem(incomplete, type="file")]


# -- shared options ----------------------------------------------------------------------------

overwrite_option = switch("--overwrite", "Replace an existing database.")

json_option = switch("--json as_json", "Print JSON on standard output.")

labels_option = option("--labels", "File of class names, one per line, or SSD's LabelMap.", FILE)

threads_option = option(
    "--threads", "Number of decoder threads. [default: number of CPUs]", POSITIVE
)

mismatch_option = option(
    "--on_mismatch",
    "Raise an error for layers of --weights whose shapes differ, or skip these layers.",
    ["raise", "skip"], "raise", old_values={"error": "raise"},
)  # fmt: skip


def device_option(help: str = "Device to run on: cpu, cuda:0, numpy, ...") -> Decorator:
    """Add ``--device`` alone."""
    return option("--device", help, metavar="DEVICE", shell_complete=complete_devices)


def weights_option(help: str, name: str = "--weights", *, required: bool = False) -> Decorator:
    """Add a flag for one or more files of weights; the command gets a list of names."""
    return option(
        name, help, multiple=True, required=required, metavar="FILE[,FILE]",
        shell_complete=_complete_files, callback=split_values,
    )  # fmt: skip


def phase_option(default: str) -> Decorator:
    """Add ``--phase``."""
    phases = click.Choice(["TRAIN", "TEST"], case_sensitive=False)
    return option("--phase", "Phase of the net's state.", phases, default)


def backend_option(default: str = "LMDB", help: str = "Kind of database.") -> Decorator:
    """Add ``--backend``."""
    return option("--backend", help, BACKEND, default)


def shape_option(help: str, metavar: str = "BLOB=N,C,H,W") -> Decorator:
    """Add ``--shape``; the command gets ``shapes``, by input."""
    return option("--shape shapes", help, callback=_shapes, multiple=True, metavar=metavar)


STATE_FLAGS = (
    option("--level", "Level of the net's state.", click.IntRange(-(2**31), 2**31 - 1)),
    option(
        "--stage stages", "Stages of the net's state.",
        multiple=True, metavar="STAGE[,STAGE]", callback=split_values,
    ),
)  # fmt: skip


def _state(level: int | None, stages: list[str]) -> dict[str, Any]:
    return {"level": level or 0, "stages": stages}


state_options = option_group("state", _state, *STATE_FLAGS)
"""Adds ``--level`` and ``--stage``; the command gets ``state``, arguments of ``Net``."""


def _devices(device: str | None, gpu: str | None) -> list[str]:
    if gpu and device is not None:
        fail("got --device and --gpu, expected one of them")
    if gpu:
        return _gpus(gpu)
    return [] if device is None else [device]


def _gpus(gpu: str) -> list[str]:
    return [f"cuda:{number}" for number in gpu_numbers(gpu)]


def _first_device(device: str | None, gpu: str | None) -> str | None:
    return next(iter(_devices(device, gpu)), None)


_device_flags = (
    device_option(),
    option("--gpu", "GPU to run on, by number, as in Caffe.", metavar="ID|all"),
)

device_options = option_group("device", _first_device, *_device_flags)
"""Adds ``--device`` and Caffe's ``--gpu``; the command gets ``device``, a name or None.

Of several GPUs, the first is used, as in Caffe.
"""

training_device_options = option_group("devices", _devices, *_device_flags)
"""Adds the flags of ``device_options``; the command gets ``devices``, all GPUs of the flag."""


def gpu_numbers(text: str) -> list[int]:
    """Return the numbers of the GPUs in a flag: numbers with commas between, or ``all``."""
    if text == "all":
        return available_gpus()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        fail(f"--gpu takes numbers of GPUs with commas between, or all; got {text!r}")
    return list(dict.fromkeys(map(int, parts)))


def available_gpus() -> list[int]:
    """Return the numbers of the GPUs of this machine; without a GPU, an error says why."""
    from demitasse.backends import backend_class
    from demitasse.errors import DeviceError, ErrorCode

    there = [int(name.partition(":")[2]) for name in backend_class("cuda").devices()]
    if not there:
        raise DeviceError(backend_class("cuda").missing(), code=ErrorCode.UNAVAILABLE)
    return there


def local_gpu(named: Sequence[str], connected: Communicator | None) -> str | None:
    """Return the GPU of this process by its local rank; "cuda" names all GPUs of the machine."""
    if connected is None or connected.size == 1:
        return named[0] if named else None
    if list(named) in (["cuda"], ["gpu"]):
        named = [f"cuda:{number}" for number in available_gpus()]
    return named[connected.local_rank % len(named)] if named else None
