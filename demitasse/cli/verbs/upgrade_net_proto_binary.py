"""upgrade_net_proto_binary: bring old weights, a caffemodel, to the current format.

Source: Caffe, ``tools/upgrade_net_proto_binary.cpp``.
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FILE
from demitasse.cli.upgrades import upgrade_net_binary
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("source", metavar="IN", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
def command(source: Path, out: Path) -> None:
    """Bring old weights, a caffemodel, to the current format."""
    upgrade_net_binary(source, out)
