"""consistency and diff: compare a net across devices, or with another model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from demitasse.cli import options
from demitasse.cli.command import Command, MultiValueCommand
from demitasse.cli.errors import FAILED, fail
from demitasse.cli.options import FILE, option, phase_option, state_options, switch, weights_option
from demitasse.cli.render import print_json, show

if TYPE_CHECKING:
    import numpy as np

    from demitasse.cli.comparison import ComparisonReport
    from demitasse.net import Net
    from demitasse.testing.compare_models import ModelComparison
    from demitasse.testing.comparison import Comparison

inputs_option = option(
    "--inputs", "A .npz file with an array for each input. [default: random inputs]", FILE
)


class Converted(Protocol):
    """A converted file or net, which can be compared with its source."""

    def compare(self, inputs: Mapping[str, np.ndarray] | None, seed: int) -> Comparison:
        """Run both on the same inputs."""


@dataclass(frozen=True)
class ReportOptions:
    """Flags of tolerance and output that comparisons share."""

    rtol: float | None
    sort_by_error: bool
    details: bool
    junit: Path | None
    html: Path | None
    as_json: bool

    def show(self, ctx: click.Context, result: ComparisonReport) -> None:
        """Print and write a report; exit with 1 if it has differences above the tolerance."""
        if self.as_json:
            print_json(result.as_dict())
        else:
            show(self._text(result))
        self._finish(ctx, result)

    def show_conversion(
        self, ctx: click.Context, text: str, facts: dict[str, Any], check: ComparisonReport | None
    ) -> None:
        """Print a summary of a conversion, and the report of a check; exit with 1 if it differs.

        ``text`` is the summary, ``facts`` the same for JSON.
        """
        if self.as_json:
            print_json(facts | {"check": None if check is None else check.as_dict()})
        else:
            show(text)
            if check is not None:
                show("\n" + self._text(check))
        if check is not None:
            self._finish(ctx, check)

    def check(
        self, made: Converted, name: str, dtype: str, inputs: Path | None, seed: int
    ) -> ComparisonReport:
        """Compare a conversion, which computes in ``dtype``, with its source on the same inputs."""
        from demitasse.cli.comparison import ComparisonReport
        from demitasse.testing.reference.model import read_arrays

        found = made.compare(None if inputs is None else read_arrays(inputs), seed)
        return ComparisonReport(name, found, [], dtype, self.rtol, title="Check")

    def _text(self, result: ComparisonReport) -> str:
        return result.text(worst_first=self.sort_by_error, details=self.details)

    def _finish(self, ctx: click.Context, result: ComparisonReport) -> None:
        if self.junit is not None:
            result.write_junit(self.junit)
        if self.html is not None:
            result.write_page(self.html)
        if not result.agree:
            ctx.exit(FAILED)


report_options = options.option_group(
    "report",
    ReportOptions,
    option(
        "--rtol",
        "Largest difference allowed, relative to an array's largest value. [default: 1e-4]",
        options.FloatRange(min=0),
    ),
    switch("--sort_by_error", "List the layers with the largest differences first.", old="--worst"),
    switch("--details", "Print a row for each array, not for each layer."),
    option("--junit", "Write the result as JUnit's XML, for CI servers.", FILE),
    option("--html", "Write the result as a page with a chart.", FILE),
    options.json_option,
)
"""Adds the flags of comparisons; the command gets ``report``."""


@click.command(cls=MultiValueCommand)
@click.argument("net", type=FILE)
@option(
    "--devices", "Two or more devices; the first is the reference.",
    shell_complete=options.complete_devices, required=True, metavar="A B ...",
)  # fmt: skip
@weights_option("Weights of NET.")
@option(
    "--steps",
    "Also train N steps on each device, and compare losses and parameters after each step.",
    click.IntRange(min=0), default=0, show_default=False, metavar="N",
)  # fmt: skip
@switch(
    "--each_step",
    "Also compare every Step with portable code on the same inputs; name the first wrong one.",
)
@report_options
@option("--seed", "Seed of weights, inputs and dropout.", click.IntRange(min=0), 0)
@option(
    "--dtype",
    "Element type of the net. Devices without bfloat16 or float16 compute in float32.",
    ["float32", "float64", "bfloat16", "float16"], "float32",
)  # fmt: skip
@inputs_option
@phase_option("TRAIN")
@state_options
@click.pass_context
def consistency_command(
    ctx: click.Context, net: Path, devices: str, weights: list[str], steps: int, each_step: bool,
    seed: int, dtype: str, inputs: Path | None, phase: str, state: dict[str, Any],
    report: ReportOptions,
) -> None:  # fmt: skip
    """Compare a net on several devices, layer by layer.

    NET is its prototxt, or an .onnx file, of phase TEST. Exits with 1 if a difference is above
    --rtol.
    """
    from demitasse.cli.comparison import ComparisonReport
    from demitasse.cli.evaluation import load_weights_into, open_net
    from demitasse.core.device import Device
    from demitasse.inference.cards.card_file import ONNX
    from demitasse.net.build import NARROW_DTYPES
    from demitasse.testing.comparison import compare, compare_training, precision, verify_steps

    names = options.split_names(devices)
    if len(names) < 2:
        fail("--devices needs two or more devices, e.g. --devices cpu cuda:0")
    phase = "TEST" if net.suffix == ONNX else phase
    if steps and phase != "TRAIN":
        fail("--steps needs a prototxt, and --phase TRAIN")
    storage = NARROW_DTYPES.get(dtype, "float")
    able = (name for name in names if storage in Device(name).backend.storages)
    device = next(able, names[0])  # the other devices run copies in float32
    with open_net(net, phase, device=device, seed=seed, dtype=dtype, **state) as made:
        load_weights_into(made, weights)
        arrays = _inputs(made, inputs, seed)
        found = compare(made, names, arrays)

        def prepare(other: Net) -> None:
            for mine, theirs in zip(made.learnable_params, other.learnable_params, strict=True):
                theirs.copy_from(mine)
            for name, array in arrays.items():
                other.set_input(name, array)

        backward = phase == "TRAIN" and any(made.structure.blob_loss_weights)
        wrong = verify_steps(made, names, arrays, backward=backward) if each_step else []
        how: dict[str, Any] = {"prepare": prepare, "seed": seed, "dtype": made.dtype, **state}
        trained = compare_training(net, names, steps, **how) if steps else []
        title = f"{made.name} ({net.name})" if made.name else net.name
        kind = precision(made)
        result = ComparisonReport(title, found, trained, kind, report.rtol, missing=wrong)
    report.show(ctx, result)


WEIGHT_FILES = {".caffemodel", ".h5", ".safetensors"}
"""Extensions of files that contain parameters only."""


@click.command(cls=Command)
@click.argument("net", type=FILE)
@click.argument("other", type=FILE)
@weights_option("Weights of NET.")
@weights_option("Weights of OTHER, a prototxt.", "--other_weights")
@options.device_option("Device of NET: cpu, cuda:0, numpy, ...")
@option("--seed", "Seed of random inputs.", click.IntRange(min=0), 0)
@inputs_option
@switch("--trust", "Allow OTHER to run code, which a .pt2 file can contain.")
@report_options
@phase_option("TEST")
@state_options
@click.pass_context
def diff_command(
    ctx: click.Context, net: Path, other: Path, weights: list[str], other_weights: list[str],
    device: str | None, seed: int, inputs: Path | None, trust: bool, phase: str,
    state: dict[str, Any], report: ReportOptions,
) -> None:  # fmt: skip
    """Compare a net with another model, by blobs and parameters.

    NET is its prototxt. OTHER is an .onnx file (run by ONNX Runtime), a .pt2 file (by PyTorch),
    another .prototxt, a file of weights, or a .npz file with recorded blobs. Exits with 1 if a
    difference is above --rtol.
    """
    from demitasse.cli.comparison import ComparisonReport
    from demitasse.cli.evaluation import load_weights_into
    from demitasse.io.weights.formats import read_weights
    from demitasse.net import Net
    from demitasse.testing.compare_models import compare_weights
    from demitasse.testing.comparison import precision

    if other_weights and other.suffix != ".prototxt":
        fail(f"--other_weights needs a prototxt as OTHER, got {other}")
    with Net(net, phase, device=device, seed=seed, **state) as made:
        load_weights_into(made, weights)
        if other.suffix in WEIGHT_FILES:
            found = compare_weights(made, other.name, read_weights(other), values=bool(weights))
            if not weights:
                note = "without --weights, only names and shapes of parameters are compared"
                found.notes.append(note)
        elif other.suffix == ".prototxt":
            with Net(other, phase, device=made.device, seed=seed, **state) as second:
                load_weights_into(second, other_weights)
                found = _with_net(made, second, other, _inputs(made, inputs, seed))
        else:
            found = _with_model(made, other, inputs, seed, trust=trust)
        title = f"{net.name} and {other.name}"
        result = ComparisonReport(
            title, found.found, [], precision(made), report.rtol,
            title="Comparison", missing=found.missing, notes=found.notes,
        )  # fmt: skip
    report.show(ctx, result)


def _with_net(net: Net, second: Net, path: Path, arrays: dict[str, Any]) -> ModelComparison:
    from demitasse.testing.compare_models import compare_model, compare_weights
    from demitasse.testing.reference.model import ReferenceNet

    found = compare_model(net, ReferenceNet(second, path.name), arrays)
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
    from demitasse.testing.compare_models import compare_model
    from demitasse.testing.reference import open_reference
    from demitasse.testing.reference.model import RecordedArrays

    other = open_reference(path, trust=trust)
    if isinstance(other, RecordedArrays):
        arrays = {name: other.arrays[name] for name in net.inputs if name in other.arrays}
        arrays |= {} if inputs is None else _inputs(net, inputs, seed)
        missing = [name for name in net.inputs if name not in arrays]
        if missing:
            fail(f"{path} lacks the inputs {', '.join(missing)}; give the inputs with --inputs")
    else:
        arrays = _inputs(net, inputs, seed)
    return compare_model(net, other, arrays)


def _inputs(net: Net, inputs: Path | None, seed: int) -> dict[str, Any]:
    from demitasse.testing.comparison import random_inputs
    from demitasse.testing.reference.model import read_arrays

    return random_inputs(net, seed) if inputs is None else read_arrays(inputs)
