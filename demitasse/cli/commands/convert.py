"""export, import and upgrade: convert models between frameworks and formats.

Source: Caffe, ``tools/upgrade_net_proto_text.cpp``, ``upgrade_net_proto_binary.cpp`` and
``upgrade_solver_proto_text.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse.cli import options
from demitasse.cli.command import Command
from demitasse.cli.commands.compare import ReportOptions, report_options
from demitasse.cli.errors import echo, fail
from demitasse.cli.options import FILE, Function, device_option, option, shape_option, switch
from demitasse.core.paths import regular_file

if TYPE_CHECKING:
    import numpy as np

    from demitasse.interop import Exported, TorchExported

Check = tuple[Path | None, int]
"""Inputs and seed of a check."""

ENDINGS = {"onnx": ".onnx", "torch": ".py"}
"""Framework -> extension of its files."""

FOR_ONNX = ("any_size", "opset", "float16", "mean", "scale", "bgr", "uint8")
"""Options of ONNX files only."""


def check_options(help: str) -> options.Decorator:
    """Add the flags of a check; the command gets ``check``: inputs and seed, or None."""
    return options.option_group(
        "check",
        lambda check, inputs, seed: (inputs, seed) if check else None,
        switch("--check", help),
        option(
            "--inputs",
            "A .npz file with an array for each input, for --check. [default: random inputs]",
            FILE,
        ),
        option(
            "--seed", "Seed of random inputs, for --check. [default: 0]", click.IntRange(min=0), 0
        ),
    )


def _batch(_ctx: click.Context, _param: click.Parameter, text: str) -> Any:
    """Return a number above 0, "dynamic", "fixed", or None for "auto"."""
    if text in {"dynamic", "fixed"}:
        return text
    if text == "auto":
        return None
    if text.isdecimal() and int(text) > 0:
        return int(text)
    message = f"got {text!r}, expected a number above 0, dynamic, fixed or auto"
    raise click.BadParameter(message)


@click.command(cls=Command)
@click.argument("net", type=FILE)
@click.argument("out", type=FILE)
@options.weights_option("Weights of NET.")
@option(
    "--to kind", "Framework of OUT. [default: by the extension of OUT]", click.Choice(list(ENDINGS))
)
@option(
    "--outputs", "Further blobs to output.",
    multiple=True, metavar="BLOB[,BLOB]", callback=options.split_values,
)  # fmt: skip
@switch("--only", "Drop layers that --outputs do not need.")
@option(
    "--batch",
    "Batch size: a number, any (dynamic), as in NET (fixed), or any if NET allows (auto).",
    default="auto", callback=_batch, metavar="N|dynamic|fixed|auto",
)  # fmt: skip
@switch("--any_size", "Allow any height, width and batch size of images.")
@shape_option("Shape of an input, in place of NET's; any other blob becomes an input.")
@option("--opset", "Version of ONNX's operators.", int, 17)
@switch("--float16", "Compute in 16 bits; inputs and outputs stay 32 bits.")
@option("--mean", "Subtract this from images: numbers, .npy, .binaryproto.", metavar="B,G,R|FILE")
@option(
    "--scale", "Multiply images by this, after --mean. [default: 1]", options.FLOAT, default=1.0
)
@switch("--bgr", "Convert images from RGB to NET's BGR.")
@switch("--uint8", "Take images as integers from 0 to 255.")
@check_options("Run OUT by ONNX Runtime or PyTorch, and compare every blob.")
@device_option("Device of NET for --check: cpu, numpy, ...")
@report_options
@options.state_options
@click.pass_context
def export_command(
    ctx: click.Context, /, net: Path, out: Path, weights: list[str], kind: str | None,
    outputs: list[str], any_size: bool, opset: int, float16: bool, mean: str | None, scale: float,
    bgr: bool, uint8: bool, check: Check | None, state: dict[str, Any], report: ReportOptions,
    **settings: Any,
) -> None:  # fmt: skip
    """Write a net in phase TEST as an ONNX file or a PyTorch module.

    NET is its prototxt, OUT an .onnx file or a .py file, with the weights in a .safetensors file
    beside it. Inputs, outputs and nodes have the names of blobs and layers; data layers become
    inputs, losses and metrics are dropped. Exits with 1 if --check finds a difference above --rtol.
    """
    from demitasse.core.paths import check_exists
    from demitasse.interop import Preprocess, export_onnx, export_torch

    check_exists(net)
    done: Exported | TorchExported
    if _framework(ctx, out, kind) == "torch":
        done = export_torch(net, weights, out, outputs=outputs, **settings, **state)
    else:
        preprocess = None
        if mean is not None or scale != 1 or bgr or uint8:
            values = _mean(mean) if mean else None
            preprocess = Preprocess(mean=values, scale=scale, bgr=bgr, uint8=uint8)
        done = export_onnx(
            net, weights, out, outputs=outputs, any_size=any_size, opset=opset, float16=float16,
            preprocess=preprocess, **settings, **state,
        )  # fmt: skip
    facts = {
        "files": [str(file) for file in done.files], "opset": getattr(done, "opset", None),
        "dtype": done.dtype, "inputs": done.inputs, "outputs": done.outputs, "notes": done.notes,
    }  # fmt: skip
    text = _conversion_text(facts, f", opset {facts['opset']}" if facts["opset"] else "")
    result = None if check is None else report.check(done, done.files[0].name, done.dtype, *check)
    report.show_conversion(ctx, text, facts, result)


def _conversion_text(facts: Mapping[str, Any], about: str) -> str:
    """Return the files, a table of the inputs and outputs with their sizes, and notes."""
    from demitasse.cli.render import table
    from demitasse.core.text import escaped

    rows = [
        (what, name, " x ".join(map(str, sizes)))
        for what in ("input", "output")
        for name, sizes in facts[f"{what}s"].items()
    ]
    notes = [f"note: {escaped(note, one_line=True)}" for note in facts["notes"]]
    written = f"Wrote {' and '.join(facts['files'])}{about}."
    return "\n".join([written, table(("", "name", "sizes"), rows), *notes])


def _framework(ctx: click.Context, out: Path, kind: str | None) -> str:
    """Return the framework; refuse other extensions of OUT, and options for ONNX only."""
    named = {ending: name for name, ending in ENDINGS.items()}.get(out.suffix)
    found = kind or named
    if found is None or out.suffix != ENDINGS[found]:
        wanted = ENDINGS[found] if found else " or ".join(ENDINGS.values())
        fail(f"got {out}, expected a file ending in {wanted}")
    given = [
        name
        for name in FOR_ONNX
        if ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    ]
    if found == "torch" and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        fail(f"{flags}: for ONNX files only")
    return found


def _mean(text: str) -> np.ndarray:
    """Return the numbers of a flag, or of the file that the flag names."""
    import numpy as np

    from demitasse.inference.cards.preprocessing import read_mean_array

    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        return read_mean_array(Path(text))
    return np.array(numbers if len(numbers) > 1 else numbers[0], np.float32)


@click.command(cls=Command)
@click.argument("model", type=FILE)
@click.argument("prototxt", type=FILE, required=False)
@click.argument("caffemodel", type=FILE, required=False)
@shape_option("Shape of an input, in place of MODEL's.", "INPUT=N,C,H,W")
@option("--batch", "Batch size. [default: MODEL's, or 1 if dynamic]", options.POSITIVE)
@check_options("Run MODEL by ONNX Runtime, and compare every value.")
@device_option("Device of the net for --check: cpu, numpy, ...")
@report_options
@click.pass_context
def import_command(
    ctx: click.Context, model: Path, prototxt: Path | None, caffemodel: Path | None,
    shapes: dict[str, tuple[int, ...]], batch: int | None, check: Check | None, device: str | None,
    report: ReportOptions,
) -> None:  # fmt: skip
    """Convert an ONNX file to a prototxt and a caffemodel.

    MODEL is an .onnx file. PROTOTXT and CAFFEMODEL default to MODEL with other extensions. Blobs
    and layers have the names of MODEL's values and nodes. Exits with 1 if --check finds a
    difference above --rtol.
    """
    from demitasse.core.paths import check_exists
    from demitasse.interop.onnx_import import import_onnx

    check_exists(model)
    if model.suffix != ".onnx":
        fail(f"got {model}, expected a file ending in .onnx")
    if prototxt is not None and caffemodel is None:
        fail(f"got {prototxt} without CAFFEMODEL; give a file for the weights, too")
    done = import_onnx(
        model, prototxt or model.with_suffix(".prototxt"),
        caffemodel or model.with_suffix(".caffemodel"), shapes=shapes, batch=batch, device=device,
    )  # fmt: skip
    inputs, outputs = (
        {name: list(done.net.blobs[name].shape) for name in names}
        for names in (done.net.inputs, done.net.outputs)
    )
    files = [str(file) for file in done.files]
    facts = {"files": files, "inputs": inputs, "outputs": outputs, "notes": done.notes}
    text = _conversion_text(facts, f", {len(done.net.layers)} layers")
    result = None if check is None else report.check(done, done.source.name, "float32", *check)
    report.show_conversion(ctx, text, facts, result)


def in_and_out(function: Function) -> Function:
    """Add the arguments IN and OUT."""
    out = click.argument("out", metavar="OUT", type=FILE)
    return click.argument("source", metavar="IN", type=FILE)(out(function))


ignore_unknown_option = switch(
    "--ignore_unknown_fields", "Drop unknown fields, with a warning.", old="--lenient"
)


def upgrade_net_text(source: Path, out: Path, *, ignore_unknown_fields: bool) -> None:
    """Upgrade the net in a prototxt."""
    from demitasse.io.proto import read_net_params, write_text

    write_text(out, read_net_params(source, ignore_unknown_fields=ignore_unknown_fields))
    echo(f"Wrote upgraded net to {out}")


def upgrade_net_binary(source: Path, out: Path) -> None:
    """Upgrade the weights in a caffemodel."""
    from demitasse.io.proto import read_net_params_binary, write_binary
    from demitasse.io.weights.hdf5 import is_hdf5

    if is_hdf5(source):
        fail(f"{source} is an HDF5 file, whose format has not changed; use it as it is")
    write_binary(out, read_net_params_binary(source))
    echo(f"Wrote upgraded net to {out}")


@click.group()
def upgrade_command() -> None:
    """Upgrade old files to the current format."""


@upgrade_command.command(cls=Command)
@in_and_out
@click.option(
    "--binary/--text", default=None, help="Format of IN and OUT. [default: by the content of IN]"
)
@ignore_unknown_option
def net(source: Path, out: Path, binary: bool | None, ignore_unknown_fields: bool) -> None:
    """Write the net or the weights in IN to OUT, in the current format."""
    if _is_binary(source) if binary is None else binary:
        upgrade_net_binary(source, out)
    else:
        upgrade_net_text(source, out, ignore_unknown_fields=ignore_unknown_fields)


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
@in_and_out
@ignore_unknown_option
def upgrade_net_proto_text_command(source: Path, out: Path, ignore_unknown_fields: bool) -> None:
    """Upgrade an old net, a prototxt, to the current format."""
    upgrade_net_text(source, out, ignore_unknown_fields=ignore_unknown_fields)


@click.command(cls=Command)
@in_and_out
def upgrade_net_proto_binary_command(source: Path, out: Path) -> None:
    """Upgrade old weights, a caffemodel, to the current format."""
    upgrade_net_binary(source, out)


@click.command(cls=Command)
@in_and_out
@ignore_unknown_option
def upgrade_solver_proto_text_command(source: Path, out: Path, ignore_unknown_fields: bool) -> None:
    """Upgrade an old solver, a prototxt, to the current format."""
    from demitasse.core.log import get_logger
    from demitasse.io.proto import SolverParameter, read_text, upgrade_solver, write_text

    message = read_text(source, SolverParameter, ignore_unknown_fields=ignore_unknown_fields)
    for note in upgrade_solver(message):
        get_logger(__name__).info("%s: %s", source, note)
    write_text(out, message)
    echo(f"Wrote upgraded solver to {out}")


upgrade_command.add_command(upgrade_solver_proto_text_command, "solver")
