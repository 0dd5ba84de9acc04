"""Small nets that are exported and held against the file that was written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from demitasse import Net
from demitasse.cli.root import cli
from demitasse.interop import export_onnx, export_torch
from demitasse.io.proto import NetParameter, parse_text, text_of

TOLERANCE = 1e-5
"""Largest difference, relative to an array's largest value."""

Shapes = Mapping[str, tuple[int, ...]]


def message(text: str, inputs: Shapes) -> NetParameter:
    """A net of some layers and of inputs of these shapes."""
    declared = "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ '
        + " ".join(f"dim: {size}" for size in shape)
        + " } } }\n"
        for name, shape in inputs.items()
    )
    return parse_text(declared + text, NetParameter)


def net(text: str, inputs: Shapes, phase: str = "TEST") -> Net:
    """The same with parameters that are random, and above 0 where they are averages."""
    made = Net(message(text, inputs), phase, device="numpy")
    random = np.random.default_rng(7)
    for layer in made.layers:
        for number, blob in enumerate(layer.blobs):
            values = random.standard_normal(blob.shape, np.float32)
            is_average = layer.type == "BatchNorm" and number in {1, 2}
            is_variance = layer.type == "BN" and number == 3
            blob.mutable_cpu_data()[...] = (
                abs(values) + 0.5 if is_average or is_variance else values
            )
    return made


def write_net(text: str, inputs: Shapes) -> None:
    """Write net.prototxt and net.caffemodel to the working directory."""
    Path("net.prototxt").write_text(text_of(message(text, inputs)))
    net(text, inputs).save("net.caffemodel")


def run_cli(args: str) -> Result:
    """Run the command line; raise what it does not catch."""
    result = CliRunner().invoke(cli, args.split())
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def expect_same(
    source: Any, folder: Path, inputs: Mapping[str, np.ndarray] | None = None, **options: Any
) -> Any:
    """Export a net to ONNX, and fail unless every blob is the same; return what was written."""
    done = export_onnx(source, None, folder / "net.onnx", device="numpy", **options)
    return _compared(done, inputs)


def expect_same_torch(
    source: Any, folder: Path, inputs: Mapping[str, np.ndarray] | None = None, **options: Any
) -> Any:
    """Export a net to PyTorch, and fail unless every blob is the same; return what was written."""
    done = export_torch(source, None, folder / "net.py", device="numpy", **options)
    return _compared(done, inputs)


def _compared(done: Any, inputs: Mapping[str, np.ndarray] | None) -> Any:
    found = done.compare(inputs)
    wrong = [one for one in found.all if not one.relative <= TOLERANCE]
    assert found.all
    assert not wrong, "\n".join(found.explain(one) for one in wrong)
    return done
