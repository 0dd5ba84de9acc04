"""example: train something that comes along."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FOLDER, device_options
from demitasse.cli.verb import Verb


@click.group()
def command() -> None:
    """Run an example that needs no download."""


@command.command(cls=Verb)
@click.option(
    "--out",
    type=FOLDER,
    default="digits",
    show_default=True,
    help="Folder for data, prototxts and weights.",
)
@device_options
def digits(out: Path, device: str | None) -> None:
    """Train a small LeNet on 1,797 handwritten digits (needs scikit-learn)."""
    from demitasse.examples.digits import run

    run(out, device)
