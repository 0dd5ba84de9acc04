"""summary: a net's layers, shapes, parameters, work and memory."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from demitasse.cli.options import (
    FILE,
    device_options,
    json_option,
    phase_option,
    state_options,
)
from demitasse.cli.output import print_json, show, table
from demitasse.cli.verb import Verb
from demitasse.core.text import bytes_text, escaped


@click.command(cls=Verb)
@click.argument("net", type=FILE)
@phase_option("TEST")
@state_options
@click.option(
    "--runs", is_flag=True, help="Also what code runs each layer on the device, and why no faster."
)
@device_options
@json_option
def command(
    net: Path,
    phase: str,
    level: int | None,
    stages: list[str],
    runs: bool,
    device: str | None,
    as_json: bool,
) -> None:
    """Show a net's layers, parameters, work and memory.

    Work is that of a forward pass, by the shapes: multiplications, each with an addition, and what
    layers read and write.
    """
    from demitasse.cli.launching import launching
    from demitasse.cli.running import running_table
    from demitasse.net import Net
    from demitasse.notebook.anatomy import anatomy, shapes_text
    from demitasse.plan.report import report

    # shapes need no device, so none is asked for unless what runs there is wanted
    where = device if runs else "numpy"
    with Net(net, phase, device=where, level=level or 0, stages=stages) as made:
        found, memory = anatomy(made), made.device.memory_info()
        found["memory"] = asdict(memory)
        if runs:
            made.reshape()
            found["device"], layers = str(made.device), report(made.plan)
            found["runs"] = [asdict(layer) for layer in layers]
            found["launching"] = launching(made)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            layer["name"],
            layer["type"],
            ", ".join(layer["bottoms"]),
            ", ".join(layer["tops"]),
            shapes_text(list(layer["tops"].values())),
            layer["parameters"],
            layer["multiply_adds"],
            bytes_text(layer["bytes_moved"]),
        )
        for layer in found["layers"]
    ]
    head = ("layer", "type", "bottom", "top", "shape", "parameters", "multiply-adds", "moved")
    total, name = found["total"], escaped(str(found["name"] or net), one_line=True)
    show(
        f"{name}, phase {found['phase']}\n\n{table(head, rows)}\n\n"
        f"{total['layers']:,} layers, {total['parameters']:,} parameters "
        f"({bytes_text(total['parameter_bytes'])}), "
        f"{total['multiply_adds']:,} multiply-adds in a forward pass, in which layers read and "
        f"write {bytes_text(total['bytes_moved'])}\n"
        f"tops: {bytes_text(total['top_bytes'])} of data, and as much of gradients in training "
        f"(Caffe's figure: {total['memory_used']:,} bytes)\n"
        f"memory of {memory.device}: {memory}"
    )
    if runs:
        shown = filter(None, (running_table(layers), found["launching"]))
        show(f"\nOn {found['device']}:\n\n" + "\n\n".join(shown))
