"""convert: make databases of published data sets."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.converters import tell_written
from demitasse.cli.options import FOLDER, backend_option, json_option, overwrite_option
from demitasse.cli.verb import Verb


@click.group()
def command() -> None:
    """Make databases of published data sets."""


@command.command(cls=Verb)
@click.argument("source", type=FOLDER)
@click.argument("out", type=FOLDER, required=False)
@backend_option(help="What kind of databases.")
@overwrite_option
@json_option
def mnist(source: Path, out: Path | None, backend: str, overwrite: bool, as_json: bool) -> None:
    """Make mnist_train_lmdb and mnist_test_lmdb, or the same as LevelDBs.

    SOURCE is the folder with MNIST's four files, gzipped or not; OUT, by default the same, is where
    the databases go.
    """
    from demitasse.io.data.databases.mnist import convert

    written = convert(source, out, overwrite=overwrite, backend=backend)
    tell_written(written, as_json=as_json)
