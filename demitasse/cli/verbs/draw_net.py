"""draw_net: a drawing of a net.

Source: Caffe, ``python/draw_net.py``.
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FILE
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("net", metavar="NET", type=FILE)
@click.argument("out", metavar="OUTPUT", type=FILE)
@click.option(
    "--rankdir",
    type=click.Choice(["LR", "RL", "TB", "BT"], case_sensitive=False),
    default="LR",
    show_default=True,
    help="Where the net runs: from the left to the right, from the top to the bottom, ...",
)
@click.option(
    "--phase",
    type=click.Choice(["TRAIN", "TEST", "ALL"], case_sensitive=False),
    default="ALL",
    show_default=True,
    help="Draw the layers of this phase.",
)
@click.option("--display_lrm", is_flag=True, help="Also the factors of the learning rate.")
def command(net: Path, out: Path, rankdir: str, phase: str, display_lrm: bool) -> None:
    """Draw a net.

    The extension of OUTPUT says how: .svg needs nothing else, .png and other pictures and .pdf need
    Pillow, .dot is text for Graphviz.
    """
    from demitasse.compat.pycaffe.draw import draw_net_to_file
    from demitasse.io.proto import Phase, read_net_params

    chosen = None if phase == "ALL" else Phase.Value(phase)
    draw_net_to_file(read_net_params(net), str(out), rankdir, chosen, display_lrm)
    click.echo(f"Drew {net} to {out}")
