"""time: how long each layer's forward and backward pass takes.

Source: Caffe, ``tools/caffe.cpp`` (``time``).
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import (
    FILE,
    device_options,
    json_option,
    phase_option,
    state_options,
)
from demitasse.cli.output import print_json, show
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.option("--model", type=FILE, required=True, help="The net's prototxt.")
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Number of passes that are measured.",
)
@click.option("--forward_only", is_flag=True, help="Leave backward passes out.")
@phase_option("TRAIN")
@state_options
@device_options
@json_option
def command(
    model: Path,
    iterations: int,
    forward_only: bool,
    phase: str,
    level: int | None,
    stages: list[str],
    device: str | None,
    as_json: bool,
) -> None:
    """Measure forward and backward passes.

    Every measurement waits until the device is done. Whole passes are measured first, without
    waiting between layers; then each layer, in the same program: layers that run as one are timed
    as one. The log has Caffe's lines; the table says what code runs each layer, and why nothing
    faster does.
    """
    from demitasse.cli.running import timing_table
    from demitasse.cli.timing import measure
    from demitasse.core.log import get_logger
    from demitasse.net import Net

    log = get_logger(__name__)
    with Net(model, phase, device=device, level=level or 0, stages=stages) as net:
        log.info("Use %s.", net.device)
        log.info("*** Benchmark begins ***")
        log.info("Testing for %d iterations.", iterations)
        timing = measure(net, iterations, backward=not forward_only)
        timing.tell()
        log.info("*** Benchmark ends ***")
        if as_json:
            about = {"model": str(model), "device": str(net.device), "phase": net.phase}
            print_json({**about, **timing.as_dict()})
        else:
            show(timing_table(timing))
