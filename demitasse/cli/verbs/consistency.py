"""consistency: run one net on several devices and say where their results differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse.cli.exits import FAILED
from demitasse.cli.lists import ListVerb
from demitasse.cli.options import FILE, json_option, phase_option, split_names, state_options
from demitasse.cli.output import print_json

if TYPE_CHECKING:
    import numpy as np


@click.command(cls=ListVerb)
@click.argument("net", type=FILE)
@click.option(
    "--devices",
    required=True,
    metavar="A B ...",
    help="Two devices or more; the first is the one the others are held against.",
)
@click.option("--weights", multiple=True, metavar="FILE[,FILE]", help="Weights to run with.")
@click.option(
    "--rtol",
    type=click.FloatRange(min=0),
    help="Largest difference allowed, relative to an array's largest value. [default: 1e-4]",
)
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Also train N steps on each device, and compare losses and parameters after each.",
)
@click.option("--worst", is_flag=True, help="Show the layers that differ most first.")
@click.option("--details", is_flag=True, help="Show every array, not one row for each layer.")
@click.option("--junit", type=FILE, help="Write the result as JUnit's XML, for build servers.")
@click.option("--html", type=FILE, help="Write the result as a page with a chart.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of weights, inputs and dropout."
)
@click.option(
    "--inputs",
    type=FILE,
    help="A .npz file with an array for each net input; without it they are random.",
)
@phase_option("TRAIN")
@state_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    net: Path,
    devices: str,
    weights: tuple[str, ...],
    rtol: float | None,
    steps: int,
    worst: bool,
    details: bool,
    junit: Path | None,
    html: Path | None,
    seed: int,
    inputs: Path | None,
    phase: str,
    level: int | None,
    stages: list[str],
    as_json: bool,
) -> None:
    """Compare a net on several devices, layer by layer.

    NET is its prototxt. Exits with 1 when they part by more than --rtol.
    """
    from demitasse.cli.agreement import Agreement
    from demitasse.cli.loading import load_weights_into
    from demitasse.net import Net
    from demitasse.testing.comparison import compare
    from demitasse.testing.inputs import random_inputs
    from demitasse.testing.training import compare_training

    names = split_names((devices,))
    if len(names) < 2:
        message = "--devices needs two devices or more, e.g. --devices cpu cuda:0"
        raise click.UsageError(message)
    if steps and phase != "TRAIN":
        message = "--steps trains, which needs --phase TRAIN"
        raise click.UsageError(message)
    state: dict[str, Any] = {"level": level or 0, "stages": stages}
    with Net(net, phase, device=names[0], seed=seed, **state) as made:
        load_weights_into(made, split_names(weights))
        arrays = random_inputs(made, seed) if inputs is None else _read(inputs)
        found = compare(made, names, arrays)

        def prepare(other: Net) -> None:
            for mine, theirs in zip(made.learnable_params, other.learnable_params, strict=True):
                theirs.copy_from(mine)
            for name, array in arrays.items():
                other.set_input(name, array)

        trained = compare_training(net, names, steps, prepare=prepare, seed=seed) if steps else []
        title = f"{made.name} ({net.name})" if made.name else net.name
        result = Agreement(title, found, trained, made.dtype, rtol)
    if junit is not None:
        result.write_junit(junit)
    if html is not None:
        result.write_page(html)
    if as_json:
        print_json(result.as_dict())
    else:
        click.echo(result.text(worst_first=worst, details=details))
    if not result.agree:
        ctx.exit(FAILED)


def _read(path: Path) -> dict[str, np.ndarray]:
    from demitasse.errors import DataError
    from demitasse.weights.npz import arrays_in

    try:
        return arrays_in(path)
    except (OSError, ValueError) as error:
        message = f"this is no .npz file of arrays: {error}"
        raise DataError(message, str(path)) from error
