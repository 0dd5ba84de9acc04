"""consistency: run one net on several devices and say where their results differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse.cli.exits import FAILED
from demitasse.cli.options import FILE, json_option, phase_option, split_names, state_options
from demitasse.cli.output import print_json, table
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    import numpy as np

    from demitasse.net import Net
    from demitasse.testing import Comparison

DEVICE = re.compile(r"\w+(:\w+)?(,\w+(:\w+)?)*")


class Consistency(Verb):
    """A verb whose ``--devices`` takes names up to the next flag or file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the names that follow ``--devices``."""
        joined: list[str] = []
        rest = list(args)
        while rest:
            arg = rest.pop(0)
            if arg == "--devices":
                names = []
                while rest and DEVICE.fullmatch(rest[0]):
                    names.append(rest.pop(0))
                arg = f"--devices={','.join(names)}"
            joined.append(arg)
        return super().parse_args(ctx, joined)


@click.command(cls=Consistency)
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
    default=1e-4,
    show_default=True,
    help="Largest difference allowed, relative to an array's largest value.",
)
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
    rtol: float,
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
    from demitasse.cli.loading import load_weights_into
    from demitasse.net import Net
    from demitasse.testing import compare

    names = split_names((devices,))
    if len(names) < 2:
        message = "--devices needs two devices or more, e.g. --devices cpu cuda:0"
        raise click.UsageError(message)
    state: dict[str, Any] = {"level": level or 0, "stages": stages}
    with Net(net, phase, device=names[0], seed=seed, **state) as made:
        load_weights_into(made, split_names(weights))
        arrays = _random(made, seed) if inputs is None else _read(inputs)
        result = compare(made, names, arrays)
    if as_json:
        print_json(_as_dict(result, rtol))
    else:
        click.echo(_text(result, rtol))
    if result.first_divergence(rtol) is not None:
        ctx.exit(FAILED)


def _random(net: Net, seed: int) -> dict[str, np.ndarray]:
    """Return normal noise for each input, and 0 where noise would be no label, index or mark.

    That is where a layer says so that reads the input, or there is one value for each item. What
    selects items is 1; -1 stands for no object.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    held = _held(net)
    arrays = {}
    for name in net.inputs:
        shape = net.blobs[name].shape
        if held[name]:
            value = 1 if "selector" in held[name] else -1 if "objects" in held[name] else 0
            arrays[name] = np.full(shape, value, np.float32)
        elif len(shape) > 1 and np.prod(shape[1:]) > 1:
            arrays[name] = random.standard_normal(shape, np.float32)
        else:
            arrays[name] = np.zeros(shape, np.float32)
    return arrays


def _held(net: Net) -> dict[str, set[str]]:
    """Return, for each blob, what layers take its values for, other than plain values."""
    from demitasse.layers.facts import facts_of

    held: dict[str, set[str]] = {name: set() for name in net.blob_names}
    for index, layer in reversed(list(enumerate(net.layers))):
        facts = facts_of(layer.type)
        bottoms = [net.blob_names[i] for i in net.structure.bottom_ids(index)]
        for name, kind in zip(bottoms, facts.kinds_of_bottoms(len(bottoms)), strict=True):
            held[name] |= {kind} if kind else set()
        if facts.shares.holds(layer.param, layer.phase):  # the same values under other names
            for top in net.structure.top_ids(index):
                held[bottoms[0]] |= held[net.blob_names[top]]
    return held


def _read(path: Path) -> dict[str, np.ndarray]:
    import zipfile

    import numpy as np

    from demitasse.errors import DataError

    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        message = f"this is no .npz file of arrays: {error}"
        raise DataError(message, str(path)) from error


def _text(result: Comparison, rtol: float) -> str:
    rows = [
        (d.layer, d.type, d.what, d.device, f"{d.relative:.2e}", f"{d.absolute:.2e}",
         "" if d.relative <= rtol else "parts")
        for d in result.differences
    ]  # fmt: skip
    head = ("layer", "type", "what", f"{result.reference} against", "relative", "absolute", "")
    first = result.first_divergence(rtol)
    if first is None:
        end = f"They agree within {rtol:g}; the largest difference: {result.worst}."
    else:
        end = f"First divergence (more than {rtol:g}): {first}.\nLargest: {result.worst}."
    return f"{table(head, rows)}\n\n{end}"


def _as_dict(result: Comparison, rtol: float) -> dict[str, Any]:
    from dataclasses import asdict

    first = result.first_divergence(rtol)
    return {
        "reference": result.reference,
        "devices": result.devices,
        "rtol": rtol,
        "agree": first is None,
        "first_divergence": None if first is None else asdict(first),
        "differences": [asdict(difference) for difference in result.differences],
    }
