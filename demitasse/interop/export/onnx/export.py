"""The way from a net to a file of ONNX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demitasse.core.device import Device
from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.interop.export.onnx.files import Model, check_model, write_model
from demitasse.interop.export.onnx.half import to_half
from demitasse.interop.export.onnx.library import library
from demitasse.interop.export.onnx.model import model_of
from demitasse.interop.export.onnx.preprocess import Preprocess
from demitasse.interop.export.onnx.table import ANY_SIZE, reason_against
from demitasse.interop.export.prepare import Batch, made_net, with_free_batch, written
from demitasse.interop.export.request import Shapes
from demitasse.interop.export.sizes import Free, free_sizes
from demitasse.interop.export.walk import Walk
from demitasse.io.proto import NetParameter
from demitasse.net import Net
from demitasse.net.build import as_sequence

if TYPE_CHECKING:
    import numpy as np

    from demitasse.testing.comparison import Comparison

__all__ = ["OPSETS", "Exported", "Preprocess", "export_onnx"]

OPSETS = range(13, 23)
"""Versions of the operators that can be asked for."""

OPSET = 17
"""The version that is used where none is asked for."""


@dataclass
class Exported:
    """A file of ONNX that was written.

    Attributes:
        files: The file, and the one beside it where constants are too large for one.
        opset: Version of its operators.
        inputs: Name of each input -> its sizes; a free one is a formula.
        outputs: The same of each output.
        notes: What was left out or assumed, in words.
        dtype: What it computes in: "float32" or "float16".
        net: The net that was written, with its weights.
        walk: Which value of the net is called what in the file.
        preprocess: What the file does to images first.
    """

    files: list[Path]
    opset: int
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]
    notes: list[str]
    dtype: str
    net: Net
    walk: Walk
    preprocess: Preprocess | None

    def compare(self, inputs: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> Comparison:
        """Run the file by ONNX Runtime, and hold it against the net, layer by layer.

        Args:
            inputs: An array for each input of the file; None for random ones.
            seed: What random ones are made from.

        Raises:
            DataError: ONNX Runtime cannot load the file, or not run it.
            DemitasseError: It is not installed.
        """
        from demitasse.interop.export.onnx.check import check_file

        return check_file(self.files[0], self.net, self.walk, self.preprocess, inputs, seed)


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
    """Write a net of phase TEST to a file of ONNX.

    Inputs, outputs and nodes are called as blobs and layers are. Losses, metrics and layers that
    read data have no place in it: the last become inputs.

    Args:
        net: A prototxt file, a message, or a net, whose parameters are used then.
        weights: Files or messages to load parameters from; one, several, or None.
        path: The file to write.
        outputs: Names of blobs that are outputs, too.
        only: Whether those are the only outputs, and what they do not need is left out.
        batch: "dynamic" for a free first axis of every input; a number, or "fixed" for that of the
            net; None: free where the net allows it.
        any_size: Whether images may have any height and width, of a net without fully connected
            layers. The batch is free then.
        shapes: Shapes of inputs, in place of those that the net has for them; and of other blobs
            that are to be inputs, in place of the layers that compute them.
        opset: Version of the operators, one of ``OPSETS``.
        float16: Whether numbers inside the file have 16 bits; inputs and outputs keep 32.
        preprocess: What the file does to images first.
        check: Whether the file is run by ONNX Runtime on random inputs and held against the net.
        level: Level of the net's state.
        stages: Stages of the net's state.
        device: Where the net runs; None asks the configuration.

    Returns:
        What was written.

    Raises:
        NetError: Some layers have no form in ONNX: all are named, and nothing is written. Or the
            net takes no other batch, and a free one is asked for. Or, with ``check``, the file
            computes something else than the net.
        ConfigError: An argument has a value it cannot have.
        DemitasseError: onnx is not installed, or a file cannot be read.
    """
    library("onnx")
    _check_opset(opset)
    if check:
        library("onnxruntime")
    files = tuple(as_sequence(weights))
    if any_size and batch not in {None, "dynamic"}:
        message = f"where images may have any size the batch is free; it cannot be {batch!r}"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="batch", got=batch)
    made, notes = made_net(
        net, files, reason_against, outputs=outputs, only=only, batch=batch, shapes=shapes,
        level=level, stages=stages, device=device,
    )  # fmt: skip
    extra = () if only else outputs
    model, found = _written(made, extra, batch, opset, preprocess, notes, any_size=any_size)
    if float16:
        to_half(model)
    check_model(model)
    graph = model.message.graph
    result = Exported(
        files=write_model(model, Path(path)),
        opset=opset,
        inputs={one.name: _sizes(one) for one in graph.input},
        outputs={one.name: _sizes(one) for one in graph.output},
        notes=notes,
        dtype="float16" if float16 else "float32",
        net=made,
        walk=found,
        preprocess=preprocess,
    )
    if check:
        result.compare().need_agreement(f"{result.files[0]} parts from the net", result.dtype)
    return result


def _check_opset(opset: int) -> None:
    newest = library("onnx").defs.onnx_opset_version()
    if opset not in OPSETS or opset > newest:
        message = (
            f"opset must be from {OPSETS[0]} to {min(OPSETS[-1], newest)}, it is {opset}; "
            f"{OPSET} is widely read"
        )
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="opset", got=opset)


def _written(
    net: Net,
    outputs: Sequence[str],
    batch: Batch,
    opset: int,
    how: Preprocess | None,
    notes: list[str],
    *,
    any_size: bool,
) -> tuple[Model, Walk]:
    """Return the model, and the walk it was made of; with a free batch where that can be."""

    def write(found: Walk) -> Model:
        if any_size:
            _need_any_size(found)
        return model_of(found, net.name, opset, how)

    with net.exclusive("export"):
        if any_size:
            return written(net, outputs, free_sizes(net, any_size=True), write)
        return with_free_batch(net, outputs, batch, notes, write)


def _need_any_size(found: Walk) -> None:
    """Refuse layers that are written for one size of images.

    Raises:
        NetError: There are some; all are named.
    """
    faults = [
        step
        for step in found.steps
        if step.layer.type not in ANY_SIZE
        and any(isinstance(size, Free) for one in step.bottoms for size in one.sizes[1:])
    ]
    if faults:
        called = ", ".join(step.place.called for step in faults)
        message = f"images cannot have any size: {called} can be written for one alone"
        raise NetError(
            message, code=ErrorCode.UNSUPPORTED, layers=[step.layer.name for step in faults]
        )


def _sizes(info: Any) -> list[int | str]:
    return [one.dim_param or one.dim_value for one in info.type.tensor_type.shape.dim]
