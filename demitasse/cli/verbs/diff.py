"""diff: hold a net against another framework's file, another prototxt, weights, or records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse.cli.completion import complete_devices, complete_files
from demitasse.cli.options import FILE, phase_option, split_names, state_options
from demitasse.cli.shown import Shown, agreement_options
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    from demitasse.net import Net
    from demitasse.testing.against import ModelComparison

WEIGHTS = {".caffemodel", ".h5", ".safetensors"}
"""Endings of files that hold parameters alone."""


@click.command(cls=Verb)
@click.argument("net", type=FILE)
@click.argument("other", type=FILE)
@click.option(
    "--weights",
    multiple=True,
    metavar="FILE[,FILE]",
    shell_complete=complete_files,
    help="Weights of NET.",
)
@click.option(
    "--other_weights",
    multiple=True,
    metavar="FILE[,FILE]",
    shell_complete=complete_files,
    help="Weights of OTHER, a prototxt.",
)
@click.option(
    "--device",
    metavar="DEVICE",
    shell_complete=complete_devices,
    help="Where NET runs: cpu, cuda:0, numpy, ...",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random inputs.")
@click.option(
    "--inputs",
    type=FILE,
    help="A .npz file with an array for each net input; without it they are random.",
)
@click.option("--trust", is_flag=True, help="Let OTHER run code, which a .pt2 file can hold.")
@agreement_options
@phase_option("TEST")
@state_options
@click.pass_context
def command(
    ctx: click.Context,
    net: Path,
    other: Path,
    weights: tuple[str, ...],
    other_weights: tuple[str, ...],
    device: str | None,
    seed: int,
    inputs: Path | None,
    trust: bool,
    phase: str,
    level: int | None,
    stages: list[str],
    shown: Shown,
) -> None:
    """Compare a net with another model, blob by blob and parameter by parameter.

    NET is its prototxt. OTHER is an .onnx file (run by ONNX Runtime), a .pt2 file (by PyTorch),
    another .prototxt, a file of weights, or a .npz file with recorded blobs. Exits with 1 when
    they part by more than --rtol.
    """
    from demitasse.cli.agreement import Agreement
    from demitasse.cli.loading import load_weights_into
    from demitasse.net import Net

    if other_weights and other.suffix != ".prototxt":
        message = f"--other_weights are for another prototxt, and {other} is none"
        raise click.UsageError(message)
    state: dict[str, Any] = {"level": level or 0, "stages": stages}
    with Net(net, phase, device=device, seed=seed, **state) as made:
        load_weights_into(made, split_names(weights))
        if other.suffix in WEIGHTS:
            found = _with_weights(made, other, bool(weights))
        elif other.suffix == ".prototxt":
            with Net(other, phase, device=made.device, seed=seed, **state) as second:
                load_weights_into(second, split_names(other_weights))
                found = _with_net(made, second, other, _given(made, inputs, seed))
        else:
            found = _with_model(made, other, inputs, seed, trust=trust)
        title = f"{net.name} and {other.name}"
        result = Agreement(
            title, found.found, [], made.dtype, shown.rtol,
            title="Comparison", missing=found.missing, notes=found.notes,
        )  # fmt: skip
    shown.show(ctx, result)


def _with_weights(net: Net, other: Path, loaded: bool) -> ModelComparison:
    from demitasse.io.weights.read import read_weights
    from demitasse.testing.against import compare_weights

    found = compare_weights(net, other.name, read_weights(other), values=loaded)
    if not loaded:
        found.notes.append("without --weights, only names and shapes of parameters are compared")
    return found


def _with_net(net: Net, second: Net, path: Path, arrays: dict[str, Any]) -> ModelComparison:
    from demitasse.testing.against import compare_model, compare_weights
    from demitasse.testing.others.prototxt import OtherNet

    found = compare_model(net, OtherNet(second, path.name), arrays)
    stored = {
        layer.name: dict(enumerate(blob.cpu_data() for blob in layer.blobs))
        for layer in second.layers
        if layer.blobs
    }
    parameters = compare_weights(net, path.name, stored)
    found.found.differences += parameters.found.differences
    found.missing += parameters.missing
    return found


def _with_model(
    net: Net, path: Path, inputs: Path | None, seed: int, *, trust: bool
) -> ModelComparison:
    from demitasse.testing.against import compare_model
    from demitasse.testing.others import open_other
    from demitasse.testing.others.recorded import Recorded

    other = open_other(path, trust=trust)
    if isinstance(other, Recorded):
        arrays = {name: other.arrays[name] for name in net.inputs if name in other.arrays}
        arrays |= {} if inputs is None else _given(net, inputs, seed)
        _need(arrays, net.inputs, path)
    else:
        arrays = _given(net, inputs, seed)
    return compare_model(net, other, arrays)


def _given(net: Net, inputs: Path | None, seed: int) -> dict[str, Any]:
    from demitasse.testing.inputs import random_inputs
    from demitasse.testing.others.recorded import read_arrays

    return random_inputs(net, seed) if inputs is None else read_arrays(inputs)


def _need(arrays: dict[str, Any], names: Sequence[str], path: Path) -> None:
    """Refuse records whose inputs nobody knows.

    Raises:
        UsageError: An input is missing.
    """
    missing = [name for name in names if name not in arrays]
    if missing:
        message = (
            f"{path} has not recorded the inputs {', '.join(missing)}; give them with --inputs"
        )
        raise click.UsageError(message)
