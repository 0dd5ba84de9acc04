"""summary: a net's layers, shapes, parameters, work and memory."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FILE, json_option, phase_option, state_options
from demitasse.cli.output import bytes_text, print_json, table
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("net", type=FILE)
@phase_option("TEST")
@state_options
@json_option
def command(net: Path, phase: str, level: int | None, stages: list[str], as_json: bool) -> None:
    """Show a net's layers, parameters, work and memory.

    Work is counted in multiply-adds of convolutions, inner products and recurrent layers.
    """
    from demitasse.cli.anatomy import anatomy
    from demitasse.net import Net

    with Net(net, phase, device="cpu", level=level or 0, stages=stages) as made:
        found = anatomy(made)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            layer["name"],
            layer["type"],
            ", ".join(layer["bottoms"]),
            "; ".join(f"{n} {'x'.join(map(str, s)) or '1'}" for n, s in layer["tops"].items()),
            layer["parameters"],
            layer["multiply_adds"],
        )
        for layer in found["layers"]
    ]
    head = ("layer", "type", "bottoms", "tops", "parameters", "multiply-adds")
    total = found["total"]
    click.echo(
        f"{found['name'] or net}, phase {found['phase']}\n\n{table(head, rows)}\n\n"
        f"{total['layers']:,} layers, {total['parameters']:,} parameters "
        f"({bytes_text(total['parameter_bytes'])}), "
        f"{total['multiply_adds']:,} multiply-adds in a forward pass\n"
        f"tops: {bytes_text(total['top_bytes'])} of data, and as much of gradients in training "
        f"(Caffe's figure: {total['memory_used']:,} bytes)"
    )
