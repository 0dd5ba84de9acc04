"""``export_onnx``: write a net to an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demitasse.core.deprecated import deprecated_attribute
from demitasse.core.device import Device
from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.interop.export.layer_graph import Batch, LayerGraph, build_net, convert
from demitasse.interop.export.reduction import Shapes
from demitasse.interop.export.sizes import SymbolicSize
from demitasse.interop.onnx_export.converters import ANY_SIZE, unsupported_reason
from demitasse.interop.onnx_export.files import Model, check_model, library, run_file, write_model
from demitasse.interop.onnx_export.model import Preprocess, build_model, to_half
from demitasse.io.proto import NetParameter
from demitasse.net import Net
from demitasse.net.build import as_sequence

if TYPE_CHECKING:
    import numpy as np

    from demitasse.testing.comparison import Comparison

OPSETS = range(13, 23)
"""Supported opset versions."""

OPSET = 17
"""Default opset version."""


@dataclass
class Exported:
    """Result of ``export_onnx``.

    Attributes:
        files: The ONNX file, and the file of its constants if these are too large for one file.
        opset: Opset version.
        inputs: Input name -> sizes; a symbolic size is a formula.
        outputs: Output name -> sizes.
        notes: Removed layers and assumptions, in words.
        dtype: Element type of the computation: "float32" or "float16".
        net: The exported net, with its weights.
        layer_graph: Layers and values of the net, with their names in the file.
        preprocess: Preprocessing of images inside the file.
    """

    files: list[Path]
    opset: int
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]
    notes: list[str]
    dtype: str
    net: Net
    layer_graph: LayerGraph
    preprocess: Preprocess | None

    walk = deprecated_attribute("Exported", "walk", "layer_graph")

    def compare(self, inputs: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> Comparison:
        """Run the file by ONNX Runtime, and compare it with the net, layer by layer.

        Args:
            inputs: An array for each input of the file; None for random ones.
            seed: Seed of random inputs.

        Raises:
            ConfigError: An input has no array.
            DataError: ONNX Runtime cannot load or run the file.
            DemitasseError: ONNX Runtime is not installed.
        """
        from demitasse.interop.export.check import check_export

        run = partial(run_file, self.files[0])
        return check_export(
            "onnxruntime", run, self.net, self.layer_graph, self.preprocess, inputs, seed
        )


def export_onnx(
    net: str | os.PathLike[str] | NetParameter | Net,
    weights: Any,
    path: str | os.PathLike[str],
    *,
    outputs: Sequence[str] = (),
    only: bool = False,
    batch: Batch = None,
    any_size: bool = False,
    shapes: Shapes | None = None,
    opset: int = OPSET,
    float16: bool = False,
    preprocess: Preprocess | None = None,
    check: bool = False,
    level: int = 0,
    stages: Sequence[str] = (),
    device: str | Device | None = None,
) -> Exported:
    """Write a net of phase TEST to an ONNX file.

    Inputs, outputs and nodes have the names of blobs and layers. Losses and metrics are removed;
    data layers become inputs.

    Args:
        net: A prototxt file, a message, or a net, whose parameters are used then.
        weights: Files or messages to load parameters from; one, several, or None.
        path: The file to write.
        outputs: Names of blobs to add to the outputs.
        only: Write ``outputs`` alone and the layers that they need.
        batch: "dynamic" for a symbolic first axis of every input; a number, or "fixed" for that of
            the net; None for a symbolic one where the net allows it.
        any_size: Make height and width of images symbolic, in a net without fully connected layers.
            The batch is symbolic, too.
        shapes: Shapes of inputs, in place of declared ones. A shape of another blob turns the blob
            into an input and removes the layers that compute it.
        opset: Opset version, one of ``OPSETS``.
        float16: Compute in float16; inputs and outputs stay float32.
        preprocess: Preprocessing of images to include in the file.
        check: Run the file by ONNX Runtime on random inputs and compare it with the net.
        level: Level of the net's state.
        stages: Stages of the net's state.
        device: Device of the net; None for the configured one.

    Returns:
        The written files, inputs, outputs and notes.

    Raises:
        NetError: Some layers have no ONNX form (names all; writes nothing), or the batch of the net
            cannot be "dynamic", or ``check`` finds a difference.
        ConfigError: An argument has an invalid value.
        DemitasseError: onnx is not installed, or a file cannot be read.
    """
    newest = library("onnx").defs.onnx_opset_version()
    if opset not in OPSETS or opset > newest:
        supported = f"{OPSETS[0]} to {min(OPSETS[-1], newest)}"
        message = f"got opset {opset}, expected {supported}; {OPSET} is widely supported"
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="opset", got=opset)
    if check:
        library("onnxruntime")
    if any_size and batch not in {None, "dynamic"}:
        message = f"got batch {batch!r} with any_size, which makes the batch symbolic"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="batch", got=batch)
    made, notes = build_net(
        net, tuple(as_sequence(weights)), unsupported_reason, outputs=outputs, only=only,
        batch=batch, shapes=shapes, level=level, stages=stages, device=device,
    )  # fmt: skip

    def write(layers: LayerGraph) -> Model:
        if any_size:
            _check_any_size(layers)
        return build_model(layers, made.name, opset, preprocess)

    more = () if only else outputs
    with made.exclusive("export"):
        model, layers = convert(made, more, batch, notes, write, any_size=any_size)
    if float16:
        to_half(model)
    check_model(model)
    result = Exported(
        files=write_model(model, Path(path)),
        opset=opset,
        inputs={value.name: value.texts for value in layers.inputs},
        outputs={name: value.texts for name, value in layers.outputs.items()},
        notes=notes,
        dtype="float16" if float16 else "float32",
        net=made,
        layer_graph=layers,
        preprocess=preprocess,
    )
    if check:
        result.compare().check_agreement(f"{result.files[0]} disagrees with the net", result.dtype)
    return result


def _check_any_size(layers: LayerGraph) -> None:
    """Refuse layers whose converters need a fixed image size."""
    fixed = [
        node
        for node in layers.nodes
        if node.layer.type not in ANY_SIZE
        and any(isinstance(size, SymbolicSize) for one in node.bottoms for size in one.sizes[1:])
    ]
    if fixed:
        labels, names = zip(*((node.label, node.layer.name) for node in fixed), strict=True)
        message = (
            f"{', '.join(labels)} cannot be exported for any image size; export without it for "
            "one size"
        )
        raise NetError(message, code=ErrorCode.UNSUPPORTED, layers=list(names))
