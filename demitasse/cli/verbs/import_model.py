"""import: make a net and its weights of a file of another framework."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse.cli.options import FILE, shapes_given
from demitasse.cli.shown import Shown, agreement_options
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    from demitasse.interop.onnx_import import Imported


@click.command(cls=Verb)
@click.argument("model", type=FILE)
@click.argument("prototxt", type=FILE, required=False)
@click.argument("caffemodel", type=FILE, required=False)
@click.option(
    "--shape",
    "shapes",
    callback=shapes_given,
    multiple=True,
    metavar="INPUT=N,C,H,W",
    help="Shape of an input, in place of that in MODEL.",
)
@click.option(
    "--batch", type=click.IntRange(min=1), help="Items in a batch; 1 where MODEL leaves it free."
)
@click.option("--check", is_flag=True, help="Run MODEL by ONNX Runtime, and compare every value.")
@click.option("--inputs", type=FILE, help="A .npz file with an array for each input, for --check.")
@click.option("--seed", type=int, default=0, help="Seed of random inputs, for --check.")
@click.option("--device", metavar="DEVICE", help="Where the net runs for --check: cpu, numpy, ...")
@agreement_options
@click.pass_context
def command(
    ctx: click.Context,
    model: Path,
    prototxt: Path | None,
    caffemodel: Path | None,
    shapes: dict[str, tuple[int, ...]],
    batch: int | None,
    check: bool,
    inputs: Path | None,
    seed: int,
    device: str | None,
    shown: Shown,
) -> None:
    """Make a prototxt and a caffemodel of a file of ONNX.

    MODEL is an .onnx file. Without PROTOTXT and CAFFEMODEL they are called as MODEL is. Blobs and
    layers are called as its values and nodes are. Exits with 1 when --check finds a value that is
    off by more than --rtol.
    """
    from demitasse.interop.onnx_import import import_onnx

    if model.suffix != ".onnx":
        message = f"{model} must end in .onnx, the format that there is"
        raise click.UsageError(message)
    if prototxt is not None and caffemodel is None:
        message = f"give a file for the weights, too, behind {prototxt}"
        raise click.UsageError(message)
    done = import_onnx(
        model, prototxt or model.with_suffix(".prototxt"),
        caffemodel or model.with_suffix(".caffemodel"), shapes=shapes, batch=batch, device=device,
    )  # fmt: skip
    result = shown.checked(done, done.source.name, "float32", inputs, seed) if check else None
    shown.show_made(ctx, _text(done), _as_dict(done), result)


def _shapes_of(done: Imported, names: list[str]) -> dict[str, list[int]]:
    return {name: list(done.net.blobs[name].shape) for name in names}


def _text(done: Imported) -> str:
    from demitasse.cli.output import table
    from demitasse.core.text import escaped

    rows = [
        (what, escaped(name, one_line=True), " x ".join(map(str, sizes)))
        for what, names in (("input", done.net.inputs), ("output", done.net.outputs))
        for name, sizes in _shapes_of(done, list(names)).items()
    ]
    files = " and ".join(map(str, done.files))
    notes = [f"note: {escaped(note, one_line=True)}" for note in done.notes]
    layers = len(done.net.layers)
    return "\n".join([f"Wrote {files}, {layers} layers.", table(("", "name", "sizes"), rows),
                      *notes])  # fmt: skip


def _as_dict(done: Imported) -> dict[str, Any]:
    return {
        "files": [str(file) for file in done.files],
        "inputs": _shapes_of(done, list(done.net.inputs)),
        "outputs": _shapes_of(done, list(done.net.outputs)),
        "notes": done.notes,
    }
