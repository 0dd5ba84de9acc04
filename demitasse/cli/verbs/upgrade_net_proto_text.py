"""upgrade_net_proto_text: bring an old net, a prototxt, to the current format.

Source: Caffe, ``tools/upgrade_net_proto_text.cpp``.
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FILE
from demitasse.cli.upgrades import lenient_option, upgrade_net_text
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("source", metavar="IN", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
@lenient_option
def command(source: Path, out: Path, lenient: bool) -> None:
    """Bring an old net, a prototxt, to the current format."""
    upgrade_net_text(source, out, lenient=lenient)
