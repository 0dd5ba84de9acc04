"""largest-batch: the largest batch of a net that fits into the memory of a device."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse.cli.options import FILE, device_options, json_option, phase_option, split_names
from demitasse.cli.output import print_json, show, table
from demitasse.cli.streams import tell
from demitasse.cli.verb import Verb
from demitasse.core.text import bytes_text

if TYPE_CHECKING:
    from demitasse.benchmark import LargestBatch


@click.command(cls=Verb)
@click.argument("net", type=FILE)
@phase_option("TRAIN")
@click.option(
    "--limit",
    metavar="SIZE",
    help="What the net may take, e.g. 8GiB; default: nine tenths of what is free.",
)
@click.option(
    "--keep",
    default="outputs",
    show_default=True,
    metavar="BLOB[,BLOB]|outputs|all",
    help="Blobs to keep besides inputs and outputs.",
)
@click.option(
    "--solver",
    metavar="TYPE|FILE",
    help="Also update the parameters: by a type of solver, as SGD, or as a solver's prototxt says.",
)
@click.option("--confirm/--no_confirm", default=True, help="Run the net, or compute alone.")
@click.option(
    "--at_most",
    type=click.IntRange(min=1),
    default=65536,
    show_default=True,
    help="Largest batch that is looked for.",
)
@device_options
@json_option
def command(
    net: Path,
    phase: str,
    limit: str | None,
    keep: str,
    solver: str | None,
    confirm: bool,
    at_most: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Find the largest batch that fits into memory.

    It is computed from what two small batches take, and then run, as are others around it, in
    processes that get so much memory and no more. Layers that read data are replaced by inputs of
    their shapes.
    """
    from demitasse.benchmark import largest_batch

    found = largest_batch(
        net,
        device=device,
        phase=phase,
        limit=limit,
        keep={"all": None, "outputs": "outputs"}.get(keep, split_names((keep,))),
        solver=solver,
        confirm=confirm,
        at_most=at_most,
        tell=lambda batch: tell(f"trying a batch of {batch}"),
    )
    if as_json:
        about = {"net": str(net), **asdict(found)}
        about["use"]["total"] = found.use.total
        print_json(about)
    else:
        show(_text(found))


def _text(found: LargestBatch) -> str:
    what = f"phase {found.phase}" + (f", updated by {found.solver}" if found.solver else "")
    rows = [(name.replace("_", " "), bytes_text(size)) for name, size in asdict(found.use).items()]
    rows.append(("total", bytes_text(found.use.total)))
    if found.refused is not None:
        tried = f"{found.refused} was run and did not fit: {found.why}"
    elif found.confirmed:
        tried = "no larger one was looked for"
    else:
        tried = "it was not run"
    return (
        f"a batch of {found.batch:,} fits in {bytes_text(found.limit)} on {found.device}, {what}\n"
        f"by computation {found.computed:,}; {tried}\n\n"
        f"{table(('at that batch', 'takes'), rows)}\n\n"
        f"each item more: {bytes_text(found.per_item)}"
    )
