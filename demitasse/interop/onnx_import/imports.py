"""The way from a file of ONNX to a prototxt and a caffemodel."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.core.device import Device
from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.interop.onnx_import.draft import Draft
from demitasse.interop.onnx_import.patterns import with_patterns
from demitasse.interop.onnx_import.reading import Model, read_model
from demitasse.interop.onnx_import.source import FLOATS, NARROW, WHOLE, Node, Shape
from demitasse.interop.onnx_import.table import CONVERTERS, REASONS
from demitasse.io.proto.write import text_of
from demitasse.io.weights.save import caffemodel_pieces
from demitasse.net import Net

if TYPE_CHECKING:
    from demitasse.testing.comparison import Comparison

__all__ = ["Imported", "import_onnx"]

LARGEST = 2**31 - 1
"""Elements of a blob, which Caffe counts by an int."""

WRAPPING = {"Abs", "Add", "Gemm", "MatMul", "Mul", "Neg", "ReduceSum", "Sub"}
"""Operators that leave the range of small whole numbers."""


@dataclass
class Imported:
    """A net that a model of ONNX has become.

    Attributes:
        source: The file it was read from.
        files: The prototxt and the caffemodel; none where they were not asked for.
        net: The net, with its weights.
        blobs: Value of the model -> the blob that holds it.
        notes: What was assumed, in words.
    """

    source: Path
    files: list[Path]
    net: Net
    blobs: dict[str, str]
    notes: list[str]

    def compare(self, inputs: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> Comparison:
        """Run the file by ONNX Runtime, and hold the net against it, value by value.

        Args:
            inputs: An array for each input; None for random ones.
            seed: What random ones are made from.

        Raises:
            DataError: ONNX Runtime cannot load the file, or not run it.
            DemitasseError: It is not installed.
        """
        from demitasse.interop.onnx_import.check import check_import

        return check_import(self.source, self.net, self.blobs, inputs, seed)


def import_onnx(
    model: str | os.PathLike[str],
    prototxt: str | os.PathLike[str] | None = None,
    caffemodel: str | os.PathLike[str] | None = None,
    *,
    shapes: Mapping[str, Shape] | None = None,
    batch: int | None = None,
    check: bool = False,
    device: str | Device | None = None,
) -> Imported:
    """Make a net of a model of ONNX, with its weights.

    Blobs are called as the model's values are, layers as its nodes. What depends on no input is
    computed once.

    Args:
        model: The file.
        prototxt: The file to write the net to; None for none.
        caffemodel: The file to write the weights to.
        shapes: Shapes of inputs, in place of those that the file has.
        batch: The first size of inputs; None for the file's own, or 1 where that is free.
        check: Whether ONNX Runtime runs the file on random inputs, and the net is held against it.
        device: Where the net runs; None asks the configuration.

    Returns:
        The net, and what was written.

    Raises:
        NetError: Some nodes have no layer: all are named, and nothing is written. Or, with
            ``check``, the net computes something else than the file.
        ConfigError: An argument has a value it cannot have, or sizes of inputs are not known.
        DataError: The file cannot be read.
        DemitasseError: onnx is not installed.
    """
    if (prototxt is None) != (caffemodel is None):
        message = "give a file for the net and one for its weights, or none at all"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="caffemodel")
    if batch is not None and batch < 1:
        message = f"batch must be a number above 0, not {batch!r}"
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="batch", got=batch)
    source = Path(model)
    read = read_model(source, shapes or {}, batch)
    try:
        draft = _drafted(read)
    except NetError as error:
        raise error.at(str(source)) from None
    net = Net(draft.message, phase="TEST", device=device)
    _give_weights(net, draft)
    result = Imported(source, [], net, {}, draft.notes)
    result.blobs = _checked_shapes(net, read, draft)
    if check:
        result.compare().need_agreement(f"the net parts from {source}", "float32")
    if prototxt is not None and caffemodel is not None:
        result.files = [Path(prototxt), Path(caffemodel)]
        _write(draft, *result.files)
    return result


def _drafted(model: Model) -> Draft:
    """Return the layers of a model.

    Raises:
        NetError: Some nodes have none; all are named.
    """
    draft = Draft(model.name or "net", [*model.values, *model.outputs])
    for value in model.inputs:
        draft.input(value)
    other = sorted({one.dtype for node in model.nodes for one in node.outputs if one is not None}
                   & (FLOATS - {"float32"}))  # fmt: skip
    if other:
        draft.notes.append(f"values of {' and '.join(other)} are computed in float32")
    faults = dict(model.faults)
    lost: set[str] = set()
    for node in with_patterns(model):
        if any(one is not None and one.name in lost for one in node.inputs):
            fault = ""
        elif reason := _against_values(node):
            fault = reason
        elif node.op in CONVERTERS:
            last = next((one.name for one in reversed(node.outputs) if one is not None), "")
            try:
                with draft.node(node.name, last):
                    CONVERTERS[node.op](node, draft)
                continue
            except NetError as error:
                fault = error.message
            except (LookupError, ValueError, TypeError, ArithmeticError) as error:
                fault = f"its attributes or inputs do not fit together ({error!r})"
        else:
            fault = REASONS.get(node.op, "no layer does what it does")
        lost.update(one.name for one in node.outputs if one is not None)
        if fault:
            faults[node.called] = fault
    if faults:
        raise NetError(_refusal(faults), code=ErrorCode.UNSUPPORTED, nodes=list(faults))
    _name_outputs(model, draft)
    return draft


def _against_values(node: Node) -> str:
    """Say why float32 cannot hold a node's values; "" where it can."""
    values = [one for one in (*node.inputs, *node.outputs) if one is not None]
    odd = [one.dtype for one in values if one.dtype not in FLOATS | WHOLE]
    if odd:
        return f"it has values of {odd[0]}, which blobs cannot hold"
    if any(one.array is None and not math.prod(one.shape) for one in values):
        return "it has values without elements, and blobs have some"
    if any(math.prod(one.shape) > LARGEST for one in values):
        return f"it has values of more than {LARGEST} elements, which blobs cannot hold"
    if node.op in WRAPPING and node.y.dtype in NARROW | {"uint32", "uint64"}:
        return f"sums and products of {node.y.dtype} begin anew at their end, those of blobs do not"
    return ""


def _refusal(faults: Mapping[str, str]) -> str:
    lines = "".join(f"\n  {called}: {reason}" for called, reason in faults.items())
    return f"{len(faults)} of its nodes have no form in Caffe's layers:{lines}"


def _name_outputs(model: Model, draft: Draft) -> None:
    """See to it that every output of the model is a blob of its name."""
    for name in model.outputs:
        value = model.values.get(name)
        if value is None:
            message = f"no node computes output {name!r}"
            raise NetError(message, code=ErrorCode.MISSING, output=name)
        with draft.node(name, name):
            blob = draft.blob(value)
            if blob != name:
                draft.power(blob, to=value)


def _give_weights(net: Net, draft: Draft) -> None:
    """Fill the parameters.

    Raises:
        NetError: A layer has other parameters than the model has for it.
    """
    for name, arrays in draft.weights.items():
        blobs = net.params[name]
        found = [blob.shape for blob in blobs]
        if found != [array.shape for array in arrays]:
            message = f"layer {name!r} has parameters {found}, the model has others for it"
            raise NetError(message, code=ErrorCode.SHAPE_MISMATCH, layer=name)
        for blob, array in zip(blobs, arrays, strict=True):
            blob.mutable_cpu_data()[...] = array


def _checked_shapes(net: Net, model: Model, draft: Draft) -> dict[str, str]:
    """Return which value is held by which blob.

    Raises:
        NetError: A blob has another shape than the value.
    """
    held = {}
    for name, blob in draft.blobs.items():
        shape = net.blobs[blob].shape
        if shape != model.values[name].shape:
            message = f"blob {blob!r} is {shape}, and {name!r} is {model.values[name].shape}"
            raise NetError(message, code=ErrorCode.SHAPE_MISMATCH, blob=blob)
        held[name] = blob
    return held


def _write(draft: Draft, prototxt: Path, caffemodel: Path) -> None:
    """Write both files, or none.

    Raises:
        OSError: One cannot be written; old ones are kept.
    """
    messages = list(draft.message.layer)
    blobs = [[(array, None) for array in draft.weights.get(one.name, [])] for one in messages]
    with atomic_write(prototxt) as text, atomic_write(caffemodel) as binary:
        text.write(text_of(draft.message).encode())
        for piece in caffemodel_pieces(draft.message.name, messages, blobs):
            binary.write(piece)
