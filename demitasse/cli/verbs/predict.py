"""predict: many inputs through a trained net, by one process or shared out among several."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse.cli.images import reading
from demitasse.cli.options import FILE, device_options
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    from demitasse.inference.prediction.parts import Format


@click.command(cls=Verb)
@click.argument("model", metavar="MODEL", type=FILE)
@click.argument("inputs", metavar="INPUT...", nargs=-1)
@click.option("--weights", type=FILE, multiple=True, help="Weights of a net given as a prototxt.")
@click.option(
    "--out", "-o", type=FILE, required=True, help="The folder of parts; with --join, the file."
)
@click.option(
    "--shard",
    metavar="i/n|auto",
    default="0/1",
    show_default=True,
    help="Which share is this process's, from 0; auto asks MPI, a Slurm array or a Kubernetes job.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="How many items run at once.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["npz", "jsonl"]),
    default="npz",
    show_default=True,
    help="Arrays of the outputs, or what the model's card says of them, a line for each item.",
)
@click.option(
    "--output", metavar="BLOB", multiple=True, help="A blob to read, in place of outputs."
)
@click.option("--force", is_flag=True, help="Replace a part that was made from something else.")
@click.option(
    "--join", is_flag=True, help="Put the parts in the folder MODEL together in one file."
)
@device_options
def command(
    model: Path,
    inputs: tuple[str, ...],
    weights: tuple[Path, ...],
    out: Path,
    shard: str,
    batch: int,
    kind: Format,
    output: tuple[str, ...],
    force: bool,
    join: bool,
    device: str | None,
) -> None:
    """Run many inputs through a trained net; write outputs in parts.

    MODEL is as for run; published weights and cards are not needed for arrays and databases. INPUTs
    are images, folders and lists (.txt) of them, or one LMDB or LevelDB database, or one file of
    arrays (.npy, .npz, .h5). A part is there whole or not at all; one that is there is not made
    again. demitasse predict --join FOLDER -o FILE puts parts together.
    """
    from demitasse.inference.cards.opening import find_model
    from demitasse.inference.prediction import Maker, find_shard, join_parts, make_part
    from demitasse.inference.prediction.items import find_items

    if join:
        if inputs:
            message = "--join takes one folder of parts"
            raise click.UsageError(message)
        count = join_parts(model, out)
        click.echo(f"{out}: {count} parts")
        return
    if not inputs:
        message = "Missing argument 'INPUT...'."
        raise click.UsageError(message)
    part = find_shard(shard, os.environ)
    if shard.startswith("auto"):
        click.echo(f"Shard {part}, says {part.where}")
    with reading():
        maker = Maker(find_model(model, weights), device, output)
        items = find_items(inputs, maker.net.inputs)
    path, made = make_part(out, part, maker, items, batch=batch, kind=kind, force=force)
    click.echo(f"{path}: {'made' if made else 'is there already'}")
