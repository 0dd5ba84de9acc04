"""test: score a trained net.

Source: Caffe, ``tools/caffe.cpp`` (``test``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from demitasse.cli.completion import complete_files
from demitasse.cli.options import (
    FILE,
    device_options,
    json_option,
    mismatch_option,
    split_names,
    state_options,
)
from demitasse.cli.output import print_json
from demitasse.cli.verb import Verb


def _iterations(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Read a number of batches above 0; ``epoch`` becomes None."""
    if value == "epoch":
        return None
    if not value.isdecimal() or not int(value):
        message = f"{value!r} is neither a number above 0 nor 'epoch'."
        raise click.BadParameter(message, ctx, param)
    return int(value)


@click.command(cls=Verb)
@click.option("--model", type=FILE, required=True, help="The net's prototxt.")
@click.option(
    "--weights",
    multiple=True,
    required=True,
    metavar="FILE[,FILE]",
    shell_complete=complete_files,
    help="Weights to score.",
)
@click.option(
    "--iterations",
    callback=_iterations,
    default="50",
    show_default=True,
    metavar="N|epoch",
    help="Number of batches. 'epoch' reads every record exactly once.",
)
@mismatch_option
@state_options
@device_options
@json_option
def command(
    model: Path,
    weights: tuple[str, ...],
    iterations: int | None,
    on_mismatch: Literal["error", "skip"],
    level: int | None,
    stages: list[str],
    device: str | None,
    as_json: bool,
) -> None:
    """Score a trained net.

    Logs every output of every batch, and the means at the end.
    """
    files = split_names(weights)
    if not files:  # a score of the weights that a net was made with says nothing
        message = "it names no file"
        raise click.BadParameter(message, param_hint="--weights")
    from demitasse.cli.loading import load_weights_into
    from demitasse.cli.scoring import Scores
    from demitasse.core.log import get_logger
    from demitasse.net import Net

    log = get_logger(__name__)
    scores = Scores()
    with Net(model, "TEST", device=device, level=level or 0, stages=stages, keep="outputs") as net:
        log.info("Use %s.", net.device)
        load_weights_into(net, files, on_mismatch)
        if iterations is None:
            log.info("Running for one epoch.")
        else:
            log.info("Running for %d iterations.", iterations)
        scores.run(net, iterations)
    scores.tell()
    if as_json:
        print_json(scores.as_dict())
