"""extract_seconds: when the iterations of a training run were logged.

Source: Caffe, ``tools/extra/extract_seconds.py``.
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FILE
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("log", metavar="LOGFILE", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
def command(log: Path, out: Path) -> None:
    """Write the times of a training log's iterations.

    OUT gets a line for each line of the log that names an iteration: seconds since the run began.
    """
    from demitasse.cli.training_log import seconds_of_iterations
    from demitasse.core.atomic import atomic_write

    lines = [f"{seconds:f}\n" for seconds in seconds_of_iterations(log)]
    with atomic_write(out) as file:
        file.write("".join(lines).encode())
