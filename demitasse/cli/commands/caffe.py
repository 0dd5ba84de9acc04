"""caffe and caffe_shims: Caffe's tools by their names, also as executables.

Source: Caffe, ``tools/caffe.cpp``, whose command may come after its flags.
"""

import shlex
import sys
from pathlib import Path

import click

from demitasse import __version__
from demitasse.cli.command import Command, LazyGroup
from demitasse.cli.commands import CAFFE_TOOLS
from demitasse.cli.errors import FAILED, echo, print_stderr
from demitasse.cli.gflags import CAFFE_FLAGS, normalize_name
from demitasse.cli.options import FOLDER
from demitasse.core.atomic import write_bytes
from demitasse.core.paths import real_path

BREW = ("train", "test", "time", "device_query")
"""Commands of Caffe's program ``caffe``."""

SHIMS = (
    "caffe", "compute_image_mean", "convert_annoset", "convert_imageset", "device_query",
    "extract_features", "finetune_net", "get_image_size", "net_speed_benchmark", "test_net",
    "train_net", "upgrade_net_proto_binary", "upgrade_net_proto_text",
    "upgrade_solver_proto_text",
)  # fmt: skip
"""Executables in ``build/tools`` of Caffe and of SSD's Caffe."""

EXAMPLE_SHIMS = {
    "mnist": "convert_mnist_data",
    "cifar10": "convert_cifar_data",
    "siamese": "convert_mnist_siamese_data",
}
"""Folder of ``build/examples`` -> the converter that Caffe builds there."""

REMOVED = {
    "train_net": "train --solver FILE [--snapshot FILE]",
    "finetune_net": "train --solver FILE --weights FILE",
    "test_net": "test --model FILE --weights FILE [--iterations N]",
    "net_speed_benchmark": "time --model FILE [--iterations N]",
}
"""Tool that Caffe has removed -> the command in its place."""


class CaffeTools(LazyGroup):
    """Caffe's tools; the commands of ``caffe`` may come after their flags."""

    modules = CAFFE_TOOLS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command before its flags."""
        args = command_first(args)
        flag = args[0].partition("=")[0] if args else ""
        if normalize_name(flag.removeprefix("--")) in CAFFE_FLAGS and flag.startswith("--"):
            message = f"got {flag} without a command; give {', '.join(BREW[:-1])} or {BREW[-1]}"
            raise click.UsageError(message, ctx)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a tool; a removed tool names the command in its place."""
        return removed_tool(cmd_name) or super().get_command(ctx, cmd_name)


@click.group(cls=CaffeTools)
@click.version_option("1.0.0", message=f"caffe version %(version)s (demitasse {__version__})")
def caffe_command() -> None:
    """Run a tool of Caffe under its old name."""


def command_first(args: list[str]) -> list[str]:
    """Put a command of ``caffe`` before its flags; a word after a flag without ``=`` is a value."""
    for place, arg in enumerate(args):
        before = args[place - 1] if place else ""
        if arg in BREW and (not before.startswith("-") or "=" in before):
            return [arg, *args[:place], *args[place + 1 :]]
    return args


def removed_tool(name: str) -> click.Command | None:
    """Return a command that fails and names the command in its place; None for other names."""
    if name not in REMOVED:
        return None

    @click.command(name, hidden=True, context_settings={"ignore_unknown_options": True})
    @click.argument("args", nargs=-1, type=click.UNPROCESSED)
    def command(args: tuple[str, ...]) -> None:
        del args
        print_stderr(f"error: Caffe has removed {name}; use: demitasse {REMOVED[name]}")
        raise SystemExit(FAILED)

    return command


@click.command(cls=Command)
@click.argument("folder", metavar="DIR", type=FOLDER)
def caffe_shims_command(folder: Path) -> None:
    """Write executables with the names of Caffe's tools.

    With build/tools as DIR, scripts written for Caffe run unchanged: the converters of Caffe's
    examples are written to build/examples, too.
    """
    written = write_shims(folder)
    echo(f"Wrote {len(written)} executables to {folder}")


def write_shims(folder: Path) -> list[Path]:
    """Write an executable for each tool and converter, once as NAME and once as NAME.bin.

    For a folder ``tools``, the converters are also written to ``examples`` beside the folder, as
    in Caffe's ``build``.
    """
    places = [(folder, name) for name in (*SHIMS, *EXAMPLE_SHIMS.values())]
    if real_path(folder).name == "tools":
        beside = real_path(folder).parent / "examples"
        places += [(beside / place, name) for place, name in EXAMPLE_SHIMS.items()]
    written = []
    python = shlex.quote(sys.executable)
    for place, name in places:
        place.mkdir(parents=True, exist_ok=True)
        script = f'#!/bin/sh\nexec {python} -P -m demitasse.tools.{name} "$@"\n'
        for file in (place / name, place / f"{name}.bin"):
            write_bytes(file, script.encode())
            file.chmod(0o755)
            written.append(file)
    return written
