"""What verbs that make databases of published data sets share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from demitasse.cli.output import print_json

__all__ = ["tell_written"]


def tell_written(written: Mapping[Path, int], *, as_json: bool) -> None:
    """Print how many records each database got."""
    if as_json:
        print_json({str(path): count for path, count in written.items()})
        return
    for path, count in written.items():
        click.echo(f"{path}: {count} records")
