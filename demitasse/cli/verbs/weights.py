"""weights: look into files of weights; needs no net."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse.capacity import bytes_text
from demitasse.cli.exits import FAILED
from demitasse.cli.options import FILE, json_option
from demitasse.cli.output import print_json, show, table
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    from demitasse.cli.weight_diff import WeightsDifference

FORMATS = ["npz", "h5", "safetensors", "caffemodel"]


@click.group()
def command() -> None:
    """List, export and compare files of weights."""


@command.command("list", cls=Verb)
@click.argument("file", type=FILE)
@json_option
def list_weights(file: Path, as_json: bool) -> None:
    """List the parameters in FILE."""
    from demitasse.weights.read import load_weights

    weights = load_weights(file)
    rows = [
        (layer, i, " ".join(map(str, array.shape)), array.dtype.name, array.size)
        for layer, arrays in weights.items()
        for i, array in enumerate(arrays)
    ]
    if as_json:
        head = ("layer", "index", "shape", "dtype", "count")
        entries = [dict(zip(head, row, strict=True)) for row in rows]
        for entry in entries:
            entry["shape"] = [int(size) for size in str(entry["shape"]).split()]
        print_json(entries)
        return
    count = sum(row[4] for row in rows)
    size = sum(array.nbytes for arrays in weights.values() for array in arrays)
    click.echo(table(("layer", "param", "shape", "dtype", "count"), rows))
    click.echo(f"\n{len(weights):,} layers, {count:,} values, {bytes_text(size)}")


@command.command(cls=Verb)
@click.argument("file", type=FILE)
@click.argument("out", type=FILE)
@click.option(
    "--to",
    "kind",
    type=click.Choice(FORMATS),
    help="Kind of OUT; by default the one its ending names.",
)
def export(file: Path, out: Path, kind: str | None) -> None:
    """Write the parameters in FILE to OUT.

    In npz and safetensors files a parameter is called LAYER/INDEX; in HDF5 files it is where Caffe
    puts it.
    """
    from demitasse.weights.formats import write_weights
    from demitasse.weights.read import read_weights

    kind = kind or out.suffix[1:]
    if kind not in FORMATS:
        message = f"the ending of {out} is none of {', '.join(FORMATS)}; say which with --to"
        raise click.UsageError(message)
    weights = read_weights(file)
    write_weights(out, kind, weights)
    click.echo(f"{out}: {sum(map(len, weights.values()))} arrays of {len(weights)} layers")


@command.command(cls=Verb)
@click.argument("first", type=FILE)
@click.argument("second", type=FILE)
@click.option(
    "--rtol",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Largest difference allowed, relative to an array's largest value.",
)
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True, help="Rows.")
@json_option
@click.pass_context
def diff(
    ctx: click.Context, first: Path, second: Path, rtol: float, top: int, as_json: bool
) -> None:
    """Compare the parameters of two files, layer by layer, the largest difference first.

    Exits with 1 when they differ by more than --rtol.
    """
    from demitasse.cli.weight_diff import weights_difference
    from demitasse.weights.read import load_weights

    result = weights_difference(load_weights(first), load_weights(second))
    if as_json:
        print_json({"within_rtol": result.within(rtol), **asdict(result)})
    else:
        show(_text(result, top))
    if not result.within(rtol):
        ctx.exit(FAILED)


def _text(result: WeightsDifference, top: int) -> str:
    lines = [f"only in the first: {name}" for name in result.only_first]
    lines += [f"only in the second: {name}" for name in result.only_second]
    for layer, index, one, other in result.shapes:
        lines.append(f"{layer}, parameter {index}: {_shape(one)} and {_shape(other)}")
    unlike = [array for array in result.arrays if array.absolute]
    if unlike:
        rows = [
            (a.layer, a.index, f"{a.relative:.3e}", f"{a.absolute:.3e}",
             " ".join(map(str, a.place)), f"{a.first:.6g}", f"{a.second:.6g}")
            for a in unlike[:top]
        ]  # fmt: skip
        head = ("layer", "param", "relative", "absolute", "at", "first", "second")
        lines.append(table(head, rows))
    lines.append(f"{len(unlike)} of {len(result.arrays)} arrays of equal shape differ")
    return "\n".join(lines)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else str(shape)
