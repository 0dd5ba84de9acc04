"""consistency and diff: compare a net across devices, or with another model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from demitasse.cli.command import Command, MultiValueCommand
from demitasse.cli.errors import FAILED
from demitasse.cli.options import (
    FILE,
    complete_devices,
    complete_files,
    json_option,
    phase_option,
    split_names,
    state_options,
)
from demitasse.cli.render import print_json, show

if TYPE_CHECKING:
    import numpy as np

    from demitasse.cli.comparison import ComparisonReport
    from demitasse.net import Net
    from demitasse.testing.against import ModelComparison
    from demitasse.testing.comparison import Comparison


class Comparable(Protocol):
    """A file or a net that can be held against what it was made from."""

    def compare(self, inputs: Mapping[str, np.ndarray] | None, seed: int) -> Comparison:
        """Run both on the same inputs."""


@dataclass(frozen=True)
class ReportOptions:
    """What the flags say.

    Attributes:
        rtol: Largest difference allowed; None for that of the net's numbers.
        worst: Whether layers that differ most come first.
        details: Whether every array has a row.
        junit: A file for JUnit's XML.
        html: A file for a page.
        as_json: Whether JSON is printed in place of a table.
    """

    rtol: float | None
    worst: bool
    details: bool
    junit: Path | None
    html: Path | None
    as_json: bool

    def show(self, ctx: click.Context, result: ComparisonReport) -> None:
        """Print and write a result; exit with 1 where it is no agreement."""
        self._write_files(result)
        if self.as_json:
            print_json(result.as_dict())
        else:
            show(result.text(worst_first=self.worst, details=self.details))
        if not result.agree:
            ctx.exit(FAILED)

    def show_made(
        self, ctx: click.Context, text: str, facts: dict[str, Any], check: ComparisonReport | None
    ) -> None:
        """Print what was made, and the result of a check; exit with 1 where it is no agreement.

        Args:
            ctx: The verb's.
            text: What was made.
            facts: The same for JSON.
            check: The result; None where nobody asked for one.
        """
        if self.as_json:
            print_json(facts | {"check": None if check is None else check.as_dict()})
        else:
            show(text)
        if check is not None:
            if not self.as_json:
                show("\n" + check.text(worst_first=self.worst, details=self.details))
            self._write_files(check)
            if not check.agree:
                ctx.exit(FAILED)

    def checked(
        self, made: Comparable, name: str, dtype: str, inputs: Path | None, seed: int
    ) -> ComparisonReport:
        """Run what was made and what it was made from on the same inputs.

        Args:
            made: What was made.
            name: The other framework's file.
            dtype: Numbers that it computes in.
            inputs: A .npz file of inputs; None for random ones.
            seed: What random ones are made from.
        """
        from demitasse.cli.comparison import ComparisonReport
        from demitasse.testing.others.recorded import read_arrays

        found = made.compare(None if inputs is None else read_arrays(inputs), seed)
        return ComparisonReport(name, found, [], dtype, self.rtol, title="Check")

    def _write_files(self, result: ComparisonReport) -> None:
        if self.junit is not None:
            result.write_junit(self.junit)
        if self.html is not None:
            result.write_page(self.html)


def report_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags; the verb gets ``shown``."""

    @click.option(
        "--rtol",
        type=click.FloatRange(min=0),
        help="Largest difference allowed, relative to an array's largest value. [default: 1e-4]",
    )
    @click.option("--worst", is_flag=True, help="Show the layers that differ most first.")
    @click.option("--details", is_flag=True, help="Show every array, not one row for each layer.")
    @click.option("--junit", type=FILE, help="Write the result as JUnit's XML, for build servers.")
    @click.option("--html", type=FILE, help="Write the result as a page with a chart.")
    @json_option
    @wraps(function)
    def with_shown(
        *args: Any,
        rtol: float | None,
        worst: bool,
        details: bool,
        junit: Path | None,
        html: Path | None,
        as_json: bool,
        **kwargs: Any,
    ) -> Any:
        return function(
            *args, shown=ReportOptions(rtol, worst, details, junit, html, as_json), **kwargs
        )

    return with_shown


@click.command(cls=MultiValueCommand)
@click.argument("net", type=FILE)
@click.option(
    "--devices",
    shell_complete=complete_devices,
    required=True,
    metavar="A B ...",
    help="Two devices or more; the first is the one the others are held against.",
)
@click.option(
    "--weights",
    multiple=True,
    metavar="FILE[,FILE]",
    shell_complete=complete_files,
    help="Weights to run with.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Also train N steps on each device, and compare losses and parameters after each.",
)
@report_options
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
@click.pass_context
def consistency_command(
    ctx: click.Context,
    net: Path,
    devices: str,
    weights: tuple[str, ...],
    steps: int,
    seed: int,
    inputs: Path | None,
    phase: str,
    level: int | None,
    stages: list[str],
    shown: ReportOptions,
) -> None:
    """Compare a net on several devices, layer by layer.

    NET is its prototxt. Exits with 1 when they part by more than --rtol.
    """
    from demitasse.cli.comparison import ComparisonReport
    from demitasse.cli.evaluation import load_weights_into
    from demitasse.net import Net
    from demitasse.testing.comparison import compare
    from demitasse.testing.inputs import random_inputs
    from demitasse.testing.others.recorded import read_arrays
    from demitasse.testing.training import compare_training

    names = split_names((devices,))
    if len(names) < 2:
        message = "--devices needs two devices or more, e.g. --devices cpu cuda:0"
        raise click.UsageError(message)
    if steps and phase != "TRAIN":
        message = "--steps trains, which needs --phase TRAIN"
        raise click.UsageError(message)
    state: dict[str, Any] = {"level": level or 0, "stages": stages}
    with Net(net, phase, device=names[0], seed=seed, **state) as made:
        load_weights_into(made, split_names(weights))
        arrays = random_inputs(made, seed) if inputs is None else read_arrays(inputs)
        found = compare(made, names, arrays)

        def prepare(other: Net) -> None:
            for mine, theirs in zip(made.learnable_params, other.learnable_params, strict=True):
                theirs.copy_from(mine)
            for name, array in arrays.items():
                other.set_input(name, array)

        trained = compare_training(net, names, steps, prepare=prepare, seed=seed) if steps else []
        title = f"{made.name} ({net.name})" if made.name else net.name
        result = ComparisonReport(title, found, trained, made.dtype, shown.rtol)
    shown.show(ctx, result)


WEIGHT_FILES = {".caffemodel", ".h5", ".safetensors"}
"""Endings of files that hold parameters alone."""


@click.command(cls=Command)
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
@report_options
@phase_option("TEST")
@state_options
@click.pass_context
def diff_command(
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
    shown: ReportOptions,
) -> None:
    """Compare a net with another model, blob by blob and parameter by parameter.

    NET is its prototxt. OTHER is an .onnx file (run by ONNX Runtime), a .pt2 file (by PyTorch),
    another .prototxt, a file of weights, or a .npz file with recorded blobs. Exits with 1 when
    they part by more than --rtol.
    """
    from demitasse.cli.comparison import ComparisonReport
    from demitasse.cli.evaluation import load_weights_into
    from demitasse.net import Net

    if other_weights and other.suffix != ".prototxt":
        message = f"--other_weights are for another prototxt, and {other} is none"
        raise click.UsageError(message)
    state: dict[str, Any] = {"level": level or 0, "stages": stages}
    with Net(net, phase, device=device, seed=seed, **state) as made:
        load_weights_into(made, split_names(weights))
        if other.suffix in WEIGHT_FILES:
            found = _with_weights(made, other, bool(weights))
        elif other.suffix == ".prototxt":
            with Net(other, phase, device=made.device, seed=seed, **state) as second:
                load_weights_into(second, split_names(other_weights))
                found = _with_net(made, second, other, _inputs(made, inputs, seed))
        else:
            found = _with_model(made, other, inputs, seed, trust=trust)
        title = f"{net.name} and {other.name}"
        result = ComparisonReport(
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
        arrays |= {} if inputs is None else _inputs(net, inputs, seed)
        _need(arrays, net.inputs, path)
    else:
        arrays = _inputs(net, inputs, seed)
    return compare_model(net, other, arrays)


def _inputs(net: Net, inputs: Path | None, seed: int) -> dict[str, Any]:
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
