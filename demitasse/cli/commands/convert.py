"""export, import and upgrade: convert models between frameworks and formats.

Source: Caffe, ``tools/upgrade_net_proto_text.cpp``, ``upgrade_net_proto_binary.cpp`` and
``upgrade_solver_proto_text.cpp``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse.cli.command import Command
from demitasse.cli.commands.compare import ReportOptions, report_options
from demitasse.cli.errors import echo
from demitasse.cli.gflags import RenamedOption
from demitasse.cli.options import (
    FILE,
    FLOAT,
    Function,
    device_option,
    shape_option,
    split_names,
    state_options,
    weights_option,
)
from demitasse.core.paths import regular_file

if TYPE_CHECKING:
    import numpy as np

    from demitasse.interop import Exported, Preprocess, TorchExported
    from demitasse.interop.onnx_import import Imported

ENDINGS = {"onnx": ".onnx", "torch": ".py"}
"""Framework -> extension of its files."""

FOR_ONNX = ("any_size", "opset", "float16", "mean", "scale", "bgr", "uint8")
"""Options of ONNX files only."""


def check_inputs_options(function: Function) -> Function:
    """Add ``--inputs`` and ``--seed`` of a check."""
    help_inputs = "A .npz file with an array for each input, for --check. [default: random inputs]"
    help_seed = "Seed of random inputs, for --check. [default: 0]"
    function = click.option("--seed", type=int, default=0, help=help_seed)(function)
    return click.option("--inputs", type=FILE, help=help_inputs)(function)


def _batch(_ctx: click.Context, _param: click.Parameter, text: str) -> Any:
    """Return a number above 0, "dynamic", "fixed", or None for "auto"."""
    if text in {"dynamic", "fixed"}:
        return text
    if text == "auto":
        return None
    if text.isdigit() and int(text) > 0:
        return int(text)
    message = f"got {text!r}, expected a number above 0, dynamic, fixed or auto"
    raise click.BadParameter(message)


@click.command(cls=Command)
@click.argument("net", type=FILE)
@click.argument("out", type=FILE)
@weights_option("Weights of NET.")
@click.option(
    "--to",
    "kind",
    type=click.Choice(list(ENDINGS)),
    help="Framework of OUT. [default: by the extension of OUT]",
)
@click.option("--outputs", multiple=True, metavar="BLOB[,BLOB]", help="Further blobs to output.")
@click.option("--only", is_flag=True, help="Drop layers that --outputs do not need.")
@click.option(
    "--batch",
    callback=_batch,
    default="auto",
    show_default=True,
    metavar="N|dynamic|fixed|auto",
    help="Batch size: a number, any (dynamic), as in NET (fixed), or any if NET allows (auto).",
)
@click.option("--any_size", is_flag=True, help="Allow any height, width and batch size of images.")
@shape_option("Shape of an input, in place of NET's; any other blob becomes an input.")
@click.option(
    "--opset", type=int, default=17, show_default=True, help="Version of ONNX's operators."
)
@click.option(
    "--float16", is_flag=True, help="Compute in 16 bits; inputs and outputs stay 32 bits."
)
@click.option(
    "--mean", metavar="B,G,R|FILE", help="Subtract this from images: numbers, .npy, .binaryproto."
)
@click.option(
    "--scale", type=FLOAT, default=1.0, help="Multiply images by this, after --mean. [default: 1]"
)
@click.option("--bgr", is_flag=True, help="Convert images from RGB to NET's BGR.")
@click.option("--uint8", is_flag=True, help="Take images as integers from 0 to 255.")
@click.option(
    "--check", is_flag=True, help="Run OUT by ONNX Runtime or PyTorch, and compare every blob."
)
@check_inputs_options
@device_option("Device of NET for --check: cpu, numpy, ...")
@report_options
@state_options
@click.pass_context
def export_command(
    ctx: click.Context,
    net: Path,
    out: Path,
    weights: tuple[str, ...],
    kind: str | None,
    outputs: tuple[str, ...],
    only: bool,
    batch: Any,
    any_size: bool,
    shapes: dict[str, tuple[int, ...]],
    opset: int,
    float16: bool,
    mean: str | None,
    scale: float,
    bgr: bool,
    uint8: bool,
    check: bool,
    inputs: Path | None,
    seed: int,
    device: str | None,
    level: int | None,
    stages: list[str],
    options: ReportOptions,
) -> None:
    """Write a net in phase TEST as an ONNX file or a PyTorch module.

    NET is its prototxt, OUT an .onnx file or a .py file, with the weights in a .safetensors file
    beside it. Inputs, outputs and nodes have the names of blobs and layers; data layers become
    inputs, losses and metrics are dropped. Exits with 1 if --check finds a difference above --rtol.
    """
    from demitasse.core.paths import check_exists
    from demitasse.interop import export_onnx, export_torch

    check_exists(net)
    kind = _kind(ctx, out, kind)
    done: Exported | TorchExported
    if kind == "torch":
        done = export_torch(
            net, split_names(weights), out, outputs=split_names(outputs), only=only, batch=batch,
            shapes=shapes, level=level or 0, stages=stages, device=device,
        )  # fmt: skip
    else:
        done = export_onnx(
            net, split_names(weights), out, outputs=split_names(outputs), only=only, batch=batch,
            any_size=any_size, shapes=shapes, opset=opset, float16=float16,
            preprocess=_preprocess(mean, scale, bgr=bgr, uint8=uint8),
            level=level or 0, stages=stages, device=device,
        )  # fmt: skip
    result = options.check(done, done.files[0].name, done.dtype, inputs, seed) if check else None
    options.show_conversion(ctx, _export_text(done), _export_dict(done), result)


def _kind(ctx: click.Context, out: Path, kind: str | None) -> str:
    """Return the framework.

    Raises:
        click.UsageError: OUT has another extension, or an option is for ONNX only.
    """
    named = {ending: name for name, ending in ENDINGS.items()}.get(out.suffix)
    found = kind or named
    if found is None or out.suffix != ENDINGS[found]:
        wanted = ENDINGS[found] if found else " or ".join(ENDINGS.values())
        message = f"got {out}, expected a file ending in {wanted}"
        raise click.UsageError(message)
    given = [
        name
        for name in FOR_ONNX
        if ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    ]
    if found == "torch" and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        message = f"{flags}: for ONNX files only"
        raise click.UsageError(message)
    return found


def _preprocess(mean: str | None, scale: float, *, bgr: bool, uint8: bool) -> Preprocess | None:
    from demitasse.interop import Preprocess

    if mean is None and scale == 1 and not bgr and not uint8:
        return None
    return Preprocess(mean=_mean(mean) if mean else None, scale=scale, bgr=bgr, uint8=uint8)


def _mean(text: str) -> np.ndarray:
    """Return the numbers of a flag, or of the file that the flag names."""
    import numpy as np

    from demitasse.io.data.transform.mean import read_mean
    from demitasse.io.weights.npz import read_npy

    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        file = Path(text)
        return read_npy(file) if file.suffix == ".npy" else read_mean(file)
    return np.array(numbers if len(numbers) > 1 else numbers[0], np.float32)


def _export_text(done: Exported | TorchExported) -> str:
    from demitasse.cli.render import table
    from demitasse.core.text import escaped
    from demitasse.interop import Exported

    rows = [
        (what, name, " x ".join(map(str, sizes)))
        for what, some in (("input", done.inputs), ("output", done.outputs))
        for name, sizes in some.items()
    ]
    files = " and ".join(map(str, done.files))
    notes = [f"note: {escaped(note, one_line=True)}" for note in done.notes]
    opset = f", opset {done.opset}" if isinstance(done, Exported) else ""
    return "\n".join([f"Wrote {files}{opset}.", table(("", "name", "sizes"), rows),
                      *notes])  # fmt: skip


def _export_dict(done: Exported | TorchExported) -> dict[str, Any]:
    return {
        "files": [str(file) for file in done.files],
        "opset": getattr(done, "opset", None),
        "dtype": done.dtype,
        "inputs": done.inputs,
        "outputs": done.outputs,
        "notes": done.notes,
    }


@click.command(cls=Command)
@click.argument("model", type=FILE)
@click.argument("prototxt", type=FILE, required=False)
@click.argument("caffemodel", type=FILE, required=False)
@shape_option("Shape of an input, in place of MODEL's.", "INPUT=N,C,H,W")
@click.option(
    "--batch", type=click.IntRange(min=1), help="Batch size. [default: MODEL's, or 1 if dynamic]"
)
@click.option("--check", is_flag=True, help="Run MODEL by ONNX Runtime, and compare every value.")
@check_inputs_options
@device_option("Device of the net for --check: cpu, numpy, ...")
@report_options
@click.pass_context
def import_command(
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
    options: ReportOptions,
) -> None:
    """Convert an ONNX file to a prototxt and a caffemodel.

    MODEL is an .onnx file. PROTOTXT and CAFFEMODEL default to MODEL with other extensions. Blobs
    and layers have the names of MODEL's values and nodes. Exits with 1 if --check finds a
    difference above --rtol.
    """
    from demitasse.core.paths import check_exists
    from demitasse.interop.onnx_import import import_onnx

    check_exists(model)
    if model.suffix != ".onnx":
        message = f"got {model}, expected a file ending in .onnx"
        raise click.UsageError(message)
    if prototxt is not None and caffemodel is None:
        message = f"got {prototxt} without CAFFEMODEL; give a file for the weights, too"
        raise click.UsageError(message)
    done = import_onnx(
        model, prototxt or model.with_suffix(".prototxt"),
        caffemodel or model.with_suffix(".caffemodel"), shapes=shapes, batch=batch, device=device,
    )  # fmt: skip
    result = options.check(done, done.source.name, "float32", inputs, seed) if check else None
    options.show_conversion(ctx, _import_text(done), _import_dict(done), result)


def _shapes_of(done: Imported, names: list[str]) -> dict[str, list[int]]:
    return {name: list(done.net.blobs[name].shape) for name in names}


def _import_text(done: Imported) -> str:
    from demitasse.cli.render import table
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


def _import_dict(done: Imported) -> dict[str, Any]:
    return {
        "files": [str(file) for file in done.files],
        "inputs": _shapes_of(done, list(done.net.inputs)),
        "outputs": _shapes_of(done, list(done.net.outputs)),
        "notes": done.notes,
    }


ignore_unknown_option = click.option(
    "--ignore_unknown_fields",
    cls=RenamedOption,
    old="--lenient",
    is_flag=True,
    help="Drop unknown fields, with a warning.",
)


def upgrade_net_text(source: Path, out: Path, *, ignore_unknown_fields: bool = False) -> None:
    """Upgrade the net in a prototxt."""
    from demitasse.io.proto import read_net_params, write_text

    write_text(out, read_net_params(source, ignore_unknown_fields=ignore_unknown_fields))
    echo(f"Wrote upgraded net to {out}")


def upgrade_net_binary(source: Path, out: Path) -> None:
    """Upgrade the weights in a caffemodel."""
    from demitasse.io.proto import read_net_params_binary, write_binary

    write_binary(out, read_net_params_binary(source))
    echo(f"Wrote upgraded net to {out}")


def upgrade_solver_text(source: Path, out: Path, *, ignore_unknown_fields: bool = False) -> None:
    """Upgrade the solver in a prototxt."""
    from demitasse.core.log import get_logger
    from demitasse.io.proto import SolverParameter, read_text, upgrade_solver, write_text

    message = read_text(source, SolverParameter, ignore_unknown_fields=ignore_unknown_fields)
    for note in upgrade_solver(message):
        get_logger(__name__).info("%s: %s", source, note)
    write_text(out, message)
    echo(f"Wrote upgraded solver to {out}")


@click.group()
def upgrade_command() -> None:
    """Upgrade old files to the current format."""


@upgrade_command.command(cls=Command)
@click.argument("source", metavar="IN", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
@click.option(
    "--binary/--text",
    default=None,
    help="Format of IN and OUT. [default: by the content of IN]",
)
@ignore_unknown_option
def net(source: Path, out: Path, binary: bool | None, ignore_unknown_fields: bool) -> None:
    """Write the net or the weights in IN to OUT, in the current format."""
    if _is_binary(source) if binary is None else binary:
        upgrade_net_binary(source, out)
    else:
        upgrade_net_text(source, out, ignore_unknown_fields=ignore_unknown_fields)


@upgrade_command.command(cls=Command)
@click.argument("source", metavar="IN", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
@ignore_unknown_option
def solver(source: Path, out: Path, ignore_unknown_fields: bool) -> None:
    """Write the solver in IN, a prototxt, to OUT, in the current format."""
    upgrade_solver_text(source, out, ignore_unknown_fields=ignore_unknown_fields)


def _is_binary(path: Path) -> bool:
    """Return True if a file has bytes that text does not have; False if it cannot be read."""
    try:
        with regular_file(path).open("rb") as file:
            start = file.read(1 << 16)
    except OSError:
        return False
    text = bytes(range(0x20, 0x7F)) + b"\t\n\r\f\v" + bytes(range(0x80, 0x100))
    return bool(start.translate(None, text))


@click.command(cls=Command)
@click.argument("source", metavar="IN", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
@ignore_unknown_option
def upgrade_net_proto_text_command(source: Path, out: Path, ignore_unknown_fields: bool) -> None:
    """Upgrade an old net, a prototxt, to the current format."""
    upgrade_net_text(source, out, ignore_unknown_fields=ignore_unknown_fields)


@click.command(cls=Command)
@click.argument("source", metavar="IN", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
def upgrade_net_proto_binary_command(source: Path, out: Path) -> None:
    """Upgrade old weights, a caffemodel, to the current format."""
    upgrade_net_binary(source, out)


@click.command(cls=Command)
@click.argument("source", metavar="IN", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
@ignore_unknown_option
def upgrade_solver_proto_text_command(source: Path, out: Path, ignore_unknown_fields: bool) -> None:
    """Upgrade an old solver, a prototxt, to the current format."""
    upgrade_solver_text(source, out, ignore_unknown_fields=ignore_unknown_fields)
