"""upgrade: bring old files to the current format.

Source: Caffe, ``tools/upgrade_net_proto_text.cpp``, ``upgrade_net_proto_binary.cpp`` and
``upgrade_solver_proto_text.cpp``.
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FILE
from demitasse.cli.verb import Verb
from demitasse.paths import regular

lenient_option = click.option(
    "--lenient", is_flag=True, help="Leave out fields that are not known, with a warning."
)


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
    from demitasse.proto import (
        read_net_params,
        read_net_params_binary,
        write_binary,
        write_text,
    )

    if _is_binary(source) if binary is None else binary:
        write_binary(out, read_net_params_binary(source))
    else:
        write_text(out, read_net_params(source, lenient=lenient))
    click.echo(f"Wrote upgraded net to {out}")


@command.command(cls=Verb)
@click.argument("source", metavar="IN", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
@lenient_option
def solver(source: Path, out: Path, lenient: bool) -> None:
    """Write the solver in IN, a prototxt, to OUT, in the current format."""
    from demitasse.log import get_logger
    from demitasse.proto import SolverParameter, read_text, upgrade_solver, write_text

    message = read_text(source, SolverParameter, lenient=lenient)
    for note in upgrade_solver(message):
        get_logger(__name__).info("%s: %s", source, note)
    write_text(out, message)
    click.echo(f"Wrote upgraded solver to {out}")


def _is_binary(path: Path) -> bool:
    """Whether a file holds bytes that no text has; False where it cannot be read."""
    try:
        with regular(path).open("rb") as file:
            start = file.read(1 << 16)
    except OSError:
        return False
    text = bytes(range(0x20, 0x7F)) + b"\t\n\r\f\v" + bytes(range(0x80, 0x100))
    return bool(start.translate(None, text))
