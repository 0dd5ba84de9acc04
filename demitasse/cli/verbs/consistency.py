"""consistency: run one net on several devices and say where their results differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from demitasse.cli.completion import complete_devices, complete_files
from demitasse.cli.lists import ListVerb
from demitasse.cli.options import FILE, phase_option, split_names, state_options
from demitasse.cli.shown import Shown, agreement_options


@click.command(cls=ListVerb)
@click.argument("net", type=FILE)
@click.option(
    "--devices",
    shell_complete=complete_devices,
    required=True,
    metavar="A B ...",
    help="Two devices or more; the first is the one the others are held against.",
)
@click.option(
    "--weights",
    multiple=True,
    metavar="FILE[,FILE]",
    shell_complete=complete_files,
    help="Weights to run with.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Also train N steps on each device, and compare losses and parameters after each.",
)
@agreement_options
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
@click.pass_context
def command(
    ctx: click.Context,
    net: Path,
    devices: str,
    weights: tuple[str, ...],
    steps: int,
    seed: int,
    inputs: Path | None,
    phase: str,
    level: int | None,
    stages: list[str],
    shown: Shown,
) -> None:
    """Compare a net on several devices, layer by layer.

    NET is its prototxt. Exits with 1 when they part by more than --rtol.
    """
    from demitasse.cli.agreement import Agreement
    from demitasse.cli.loading import load_weights_into
    from demitasse.net import Net
    from demitasse.testing.comparison import compare
    from demitasse.testing.inputs import random_inputs
    from demitasse.testing.others.recorded import read_arrays
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
        arrays = random_inputs(made, seed) if inputs is None else read_arrays(inputs)
        found = compare(made, names, arrays)

        def prepare(other: Net) -> None:
            for mine, theirs in zip(made.learnable_params, other.learnable_params, strict=True):
                theirs.copy_from(mine)
            for name, array in arrays.items():
                other.set_input(name, array)

        trained = compare_training(net, names, steps, prepare=prepare, seed=seed) if steps else []
        title = f"{made.name} ({net.name})" if made.name else net.name
        result = Agreement(title, found, trained, made.dtype, shown.rtol)
    shown.show(ctx, result)
