"""convert: make databases of published data sets."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FOLDER, json_option
from demitasse.cli.output import print_json
from demitasse.cli.verb import Verb


@click.group()
def command() -> None:
    """Make databases of published data sets."""


@command.command(cls=Verb)
@click.argument("source", type=FOLDER)
@click.argument("out", type=FOLDER, required=False)
@click.option("--overwrite", is_flag=True, help="Replace databases that are there.")
@json_option
def mnist(source: Path, out: Path | None, overwrite: bool, as_json: bool) -> None:
    """Make mnist_train_lmdb and mnist_test_lmdb.

    SOURCE is the folder with MNIST's four files, gzipped or not; OUT, by default the same, is where
    the databases go.
    """
    from demitasse.data.databases.mnist import convert

    written = convert(source, out, overwrite=overwrite)
    if as_json:
        print_json({str(path): count for path, count in written.items()})
        return
    for path, count in written.items():
        click.echo(f"{path}: {count} records")
