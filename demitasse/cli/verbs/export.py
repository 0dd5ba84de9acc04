"""export: write a net with its weights as a file of another framework."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse.cli.completion import complete_devices, complete_files
from demitasse.cli.options import FILE, shapes_given, split_names, state_options
from demitasse.cli.shown import Shown, agreement_options
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    import numpy as np

    from demitasse.interop.export import Exported, Preprocess, TorchExported


ENDINGS = {"onnx": ".onnx", "torch": ".py"}
"""Framework -> how a file for it ends."""

FOR_ONNX = ("any_size", "opset", "float16", "mean", "scale", "bgr", "uint8")
"""Options that only a file of ONNX has."""


def _batch(_ctx: click.Context, _param: click.Parameter, text: str) -> Any:
    """Return a number above 0, "dynamic", "fixed", or None for "auto"."""
    if text in {"dynamic", "fixed"}:
        return text
    if text == "auto":
        return None
    if text.isdigit() and int(text) > 0:
        return int(text)
    message = f"{text!r} is no number above 0, and not dynamic, fixed or auto"
    raise click.BadParameter(message)


@click.command(cls=Verb)
@click.argument("net", type=FILE)
@click.argument("out", type=FILE)
@click.option(
    "--weights",
    multiple=True,
    metavar="FILE[,FILE]",
    shell_complete=complete_files,
    help="Weights of NET.",
)
@click.option(
    "--to",
    "kind",
    type=click.Choice(list(ENDINGS)),
    help="Framework that OUT is for; by default the one its ending names.",
)
@click.option(
    "--outputs", multiple=True, metavar="BLOB[,BLOB]", help="Blobs that are outputs, too."
)
@click.option("--only", is_flag=True, help="Leave out what --outputs do not need.")
@click.option(
    "--batch",
    callback=_batch,
    default="auto",
    show_default=True,
    metavar="N|dynamic|fixed|auto",
    help="Items in a batch: a number, free, as in NET, or free where NET allows it.",
)
@click.option(
    "--any_size", is_flag=True, help="Images may have any height and width, in any batch."
)
@click.option(
    "--shape",
    "shapes",
    callback=shapes_given,
    multiple=True,
    metavar="BLOB=N,C,H,W",
    help="Shape of an input, in place of that in NET; makes any other blob an input.",
)
@click.option("--opset", type=int, default=17, show_default=True, help="Version of the operators.")
@click.option("--float16", is_flag=True, help="Compute in 16 bits; inputs and outputs keep 32.")
@click.option(
    "--mean", metavar="B,G,R|FILE", help="Subtract this from images: numbers, .npy, .binaryproto."
)
@click.option("--scale", type=float, default=1.0, help="Multiply images by this, after --mean.")
@click.option("--bgr", is_flag=True, help="Images come as RGB, and NET wants BGR.")
@click.option("--uint8", is_flag=True, help="Images come as whole numbers from 0 to 255.")
@click.option(
    "--check", is_flag=True, help="Run OUT by ONNX Runtime or PyTorch, and compare every blob."
)
@click.option("--inputs", type=FILE, help="A .npz file with an array for each input, for --check.")
@click.option("--seed", type=int, default=0, help="Seed of random inputs, for --check.")
@click.option(
    "--device",
    metavar="DEVICE",
    shell_complete=complete_devices,
    help="Where NET runs for --check: cpu, numpy, ...",
)
@agreement_options
@state_options
@click.pass_context
def command(
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
    shown: Shown,
) -> None:
    """Write a net in phase TEST as a file of ONNX, or as a module of PyTorch.

    NET is its prototxt, OUT an .onnx file or a .py file, beside which its weights lie as
    .safetensors. Inputs, outputs and nodes are called as blobs and layers are; data layers become
    inputs, losses and metrics are left out. Exits with 1 when --check finds a blob that is off by
    more than --rtol.
    """
    from demitasse.interop.export import export_onnx, export_torch

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
    result = shown.checked(done, done.files[0].name, done.dtype, inputs, seed) if check else None
    shown.show_made(ctx, _text(done), _as_dict(done), result)


def _kind(ctx: click.Context, out: Path, kind: str | None) -> str:
    """Return the framework; refuse endings and options that are not its own.

    Raises:
        click.UsageError: OUT ends otherwise, or an option is one of ONNX alone.
    """
    named = {ending: name for name, ending in ENDINGS.items()}.get(out.suffix)
    found = kind or named
    if found is None or out.suffix != ENDINGS[found]:
        wanted = ENDINGS[found] if found else " or ".join(ENDINGS.values())
        message = f"{out} must end in {wanted}"
        raise click.UsageError(message)
    given = [
        name
        for name in FOR_ONNX
        if ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    ]
    if found == "torch" and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        message = f"{flags}: only a file of ONNX has that"
        raise click.UsageError(message)
    return found


def _preprocess(mean: str | None, scale: float, *, bgr: bool, uint8: bool) -> Preprocess | None:
    from demitasse.interop.export import Preprocess

    if mean is None and scale == 1 and not bgr and not uint8:
        return None
    return Preprocess(mean=_mean(mean) if mean else None, scale=scale, bgr=bgr, uint8=uint8)


def _mean(text: str) -> np.ndarray:
    """Return numbers, or what is in a file."""
    import numpy as np

    from demitasse.io.data.transform.mean import read_mean
    from demitasse.io.weights.npy import read_npy

    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        file = Path(text)
        return read_npy(file) if file.suffix == ".npy" else read_mean(file)
    return np.array(numbers if len(numbers) > 1 else numbers[0], np.float32)


def _text(done: Exported | TorchExported) -> str:
    from demitasse.cli.output import table
    from demitasse.core.text import escaped
    from demitasse.interop.export import Exported

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


def _as_dict(done: Exported | TorchExported) -> dict[str, Any]:
    return {
        "files": [str(file) for file in done.files],
        "opset": getattr(done, "opset", None),
        "dtype": done.dtype,
        "inputs": done.inputs,
        "outputs": done.outputs,
        "notes": done.notes,
    }
