"""weights: list, export, import and compare files of weights; needs no net."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse.cli.command import Command
from demitasse.cli.errors import FAILED, echo, fail
from demitasse.cli.options import FILE, FloatRange, json_option, option, switch
from demitasse.cli.render import print_json, show, table
from demitasse.core.text import bytes_text, escaped

if TYPE_CHECKING:
    from demitasse.cli.comparison import WeightsDifference

FORMATS = ["npz", "h5", "safetensors", "caffemodel", "pt", "pth"]
TYPES = ["float32", "float16", "bfloat16"]


@click.group()
def weights_command() -> None:
    """List, export, import and compare files of weights."""


@weights_command.command("list", cls=Command)
@click.argument("file", type=FILE)
@json_option
def list_weights(file: Path, as_json: bool) -> None:
    """List the parameters in FILE."""
    from demitasse.io.weights.formats import load_weights

    weights = load_weights(file)
    arrays = [(layer, i, a) for layer, blobs in weights.items() for i, a in enumerate(blobs)]
    rows = [(layer, i, a.shape, a.dtype.name, a.size) for layer, i, a in arrays]
    if as_json:
        head = ("layer", "index", "shape", "dtype", "count")
        print_json([dict(zip(head, row, strict=True)) for row in rows])
        return
    texts = [(layer, i, " ".join(map(str, shape)), *rest) for layer, i, shape, *rest in rows]
    count, size = sum(a.size for *_, a in arrays), sum(a.nbytes for *_, a in arrays)
    echo(table(("layer", "param", "shape", "dtype", "count"), texts))
    echo(f"\n{len(weights):,} layers, {count:,} values, {bytes_text(size)}")


@weights_command.command(cls=Command)
@click.argument("file", type=FILE)
@click.argument("out", type=FILE)
@option("--to kind", "Format of OUT. [default: the extension of OUT]", click.Choice(FORMATS))
@option(
    "--map names", "Layers and their modules: write a state_dict of PyTorch with these names.", FILE
)
@option("--dtype", "Element type of a state_dict.", click.Choice(TYPES))
def export(file: Path, out: Path, kind: str | None, names: Path | None, dtype: str | None) -> None:
    """Write the parameters in FILE to OUT.

    Parameters are named LAYER/INDEX in npz and safetensors files, and as in Caffe in HDF5 files.
    With --map, and in PyTorch's .pt and .pth files, they are a state_dict: LAYER.weight,
    LAYER.bias, LAYER.running_mean, ...
    """
    from demitasse.io.weights.formats import read_layers, read_weights, write_weights
    from demitasse.io.weights.state_dict import ENDINGS, to_state_dict, write_state_dict

    kind = kind or out.suffix[1:]
    if kind not in FORMATS:
        fail(
            f"got {out}, expected an extension of {', '.join(FORMATS)}; or give the format by --to"
        )
    weights = read_weights(file)
    if names is None and kind not in {"pt", "pth"} and dtype is None:
        write_weights(out, kind, weights)
        echo(f"{out}: {sum(map(len, weights.values()))} arrays of {len(weights)} layers")
        return
    if f".{kind}" not in ENDINGS or out.suffix != f".{kind}":
        fail(f"got {out}, expected {', '.join(sorted(ENDINGS))} for a state_dict")
    arrays, pairs = to_state_dict(read_layers(file), weights, names)
    write_state_dict(out, arrays, dtype)
    echo(table(("layer", "module"), [(str(unit), module) for unit, module in pairs]))
    echo(f"\n{out}: {len(arrays)} tensors of {len(pairs)} modules")


@weights_command.command("import", cls=Command)
@click.argument("file", type=FILE)
@click.argument("net", type=FILE)
@click.argument("out", type=FILE)
@option("--map names", "Layers and their modules. [default: match by order and shape]", FILE)
@option("--save_map", "Write the layers and their modules to this file.", FILE)
@switch("--yes", "Accept the match by order and shape without a question.")
def import_state_dict(
    file: Path, net: Path, out: Path, names: Path | None, save_map: Path | None, yes: bool
) -> None:
    """Write the state_dict in FILE as weights of NET, a prototxt, to OUT.

    FILE is a .safetensors file, or a .pt or .pth file, from which PyTorch reads tensors only.
    Without --map, modules are matched by order and shape, printed, and used after confirmation.
    If something does not fit, nothing is written.
    """
    from demitasse.core.atomic import write_bytes
    from demitasse.io.weights.state_dict import map_text, pairs_for, read_state_dict, to_parameters
    from demitasse.net import Net

    arrays = read_state_dict(file)
    made = Net(net, "TEST", device="numpy")
    layers = [layer for layer in made.layers if layer.blobs]
    shapes = {layer.name: [blob.shape for blob in layer.blobs] for layer in layers}
    pairs = pairs_for([layer.param for layer in layers], shapes, arrays, names)
    weights, unread = to_parameters(pairs, shapes, arrays)
    echo(table(("layer", "module"), [(str(unit), module) for unit, module in pairs]))
    for module in unread:
        echo(f"note: no layer uses module {module!r}")
    if save_map is not None:
        write_bytes(save_map, map_text(pairs).encode())
    if names is None and not yes:
        click.confirm("Matched by order and shape. Is that right?", abort=True)
    for name, blobs in weights.items():
        for number, array in blobs.items():
            made.params[name][number].mutable_cpu_data()[...] = array
    made.save(out)
    echo(f"{out}: {sum(map(len, weights.values()))} arrays of {len(weights)} layers")


@weights_command.command(cls=Command)
@click.argument("first", type=FILE)
@click.argument("second", type=FILE)
@option(
    "--rtol", "Largest difference allowed, relative to an array's largest value.",
    FloatRange(min=0), 0.0,
)  # fmt: skip
@option("--top", "Print this many rows.", click.IntRange(min=0), 20)
@json_option
@click.pass_context
def diff(
    ctx: click.Context, first: Path, second: Path, rtol: float, top: int, as_json: bool
) -> None:
    """Compare the parameters of two files by layer, the largest difference first.

    Exits with 1 if a difference is above --rtol.
    """
    from demitasse.cli.comparison import weights_difference
    from demitasse.io.weights.formats import load_weights

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
    for layer, index, *shapes in result.shapes:
        one, other = ("missing" if shape is None else str(shape) for shape in shapes)
        lines.append(f"{layer}, parameter {index}: {one} and {other}")
    lines = [escaped(line, one_line=True) for line in lines]
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
