"""version: which Demitasse this is."""

from __future__ import annotations

import click

from demitasse import __version__
from demitasse.cli.options import json_option
from demitasse.cli.output import print_json
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@json_option
def command(as_json: bool) -> None:
    """Print the version, as --version does."""
    if as_json:
        print_json({"demitasse": __version__})
    else:
        click.echo(f"demitasse {__version__}")
