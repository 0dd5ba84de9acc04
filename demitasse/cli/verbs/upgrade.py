"""upgrade: bring old files to the current format.

Source: Caffe, ``tools/upgrade_net_proto_text.cpp``, ``upgrade_net_proto_binary.cpp`` and
``upgrade_solver_proto_text.cpp``.
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FILE
from demitasse.cli.upgrades import (
    lenient_option,
    upgrade_net_binary,
    upgrade_net_text,
    upgrade_solver_text,
)
from demitasse.cli.verb import Verb
from demitasse.core.paths import regular_file


@click.group()
def command() -> None:
    """Bring old files to the current format."""


@command.command(cls=Verb)
@click.argument("source", metavar="IN", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
@click.option(
    "--binary/--text",
    default=None,
    help="What IN is; by default found out. OUT is of the same kind.",
)
@lenient_option
def net(source: Path, out: Path, binary: bool | None, lenient: bool) -> None:
    """Write the net or the weights in IN to OUT, in the current format."""
    if _is_binary(source) if binary is None else binary:
        upgrade_net_binary(source, out)
    else:
        upgrade_net_text(source, out, lenient=lenient)


@command.command(cls=Verb)
@click.argument("source", metavar="IN", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
@lenient_option
def solver(source: Path, out: Path, lenient: bool) -> None:
    """Write the solver in IN, a prototxt, to OUT, in the current format."""
    upgrade_solver_text(source, out, lenient=lenient)


def _is_binary(path: Path) -> bool:
    """Whether a file holds bytes that no text has; False where it cannot be read."""
    try:
        with regular_file(path).open("rb") as file:
            start = file.read(1 << 16)
    except OSError:
        return False
    text = bytes(range(0x20, 0x7F)) + b"\t\n\r\f\v" + bytes(range(0x80, 0x100))
    return bool(start.translate(None, text))
