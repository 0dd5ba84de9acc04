"""Bringing old files to the current format, for the verbs that do.

Source: Caffe, ``tools/upgrade_net_proto_text.cpp``, ``upgrade_net_proto_binary.cpp`` and
``upgrade_solver_proto_text.cpp``.
"""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["lenient_option", "upgrade_net_binary", "upgrade_net_text", "upgrade_solver_text"]

lenient_option = click.option(
    "--lenient", is_flag=True, help="Leave out fields that are not known, with a warning."
)


def upgrade_net_text(source: Path, out: Path, *, lenient: bool = False) -> None:
    """Write the net in a prototxt as another one."""
    from demitasse.io.proto import read_net_params, write_text

    write_text(out, read_net_params(source, lenient=lenient))
    click.echo(f"Wrote upgraded net to {out}")


def upgrade_net_binary(source: Path, out: Path) -> None:
    """Write the weights in a caffemodel as another one."""
    from demitasse.io.proto import read_net_params_binary, write_binary

    write_binary(out, read_net_params_binary(source))
    click.echo(f"Wrote upgraded net to {out}")


def upgrade_solver_text(source: Path, out: Path, *, lenient: bool = False) -> None:
    """Write the solver in a prototxt as another one."""
    from demitasse.core.log import get_logger
    from demitasse.io.proto import SolverParameter, read_text, upgrade_solver, write_text

    message = read_text(source, SolverParameter, lenient=lenient)
    for note in upgrade_solver(message):
        get_logger(__name__).info("%s: %s", source, note)
    write_text(out, message)
    click.echo(f"Wrote upgraded solver to {out}")
