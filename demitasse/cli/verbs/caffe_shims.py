"""caffe-shims: executables with the names of Caffe's tools."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FOLDER
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("folder", metavar="DIR", type=FOLDER)
def command(folder: Path) -> None:
    """Write executables named like Caffe's tools.

    With build/tools as DIR, scripts written for Caffe run as they are: the converters of its
    examples are written to build/examples, too.
    """
    from demitasse.cli.shims import write_shims

    written = write_shims(folder)
    click.echo(f"Wrote {len(written)} executables to {folder}")
