"""``import_onnx``: turn an ONNX model into a net, a prototxt and a caffemodel."""

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
from demitasse.core.paths import real_path
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, NetError
from demitasse.graph import listed
from demitasse.interop.onnx_import.converters import CONVERTERS, REASONS
from demitasse.interop.onnx_import.model import (
    FLOATS,
    NARROW_INTEGERS,
    NUMBERS,
    Model,
    Node,
    Shape,
    read_model,
    refuse,
)
from demitasse.interop.onnx_import.net_builder import NetBuilder
from demitasse.interop.onnx_import.patterns import FAULTS, fused_nodes
from demitasse.io.proto.write import text_of
from demitasse.io.weights.save import caffemodel_pieces
from demitasse.net import Net

if TYPE_CHECKING:
    from demitasse.testing.comparison import Comparison

LARGEST = 2**31 - 1
"""Largest number of elements of a blob, an int in Caffe."""

WRAPPING = {"Abs", "Add", "Gemm", "MatMul", "Mul", "Neg", "ReduceSum", "Sub"}
"""Operators whose results can overflow small integers."""


@dataclass
class Imported:
    """Result of ``import_onnx``.

    Attributes:
        source: The ONNX file.
        files: The prototxt and the caffemodel; empty if none was requested.
        net: The net, with its weights.
        blobs: Value of the model -> blob with this value.
        notes: Assumptions, in words.
    """

    source: Path
    files: list[Path]
    net: Net
    blobs: dict[str, str]
    notes: list[str]

    def compare(self, inputs: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> Comparison:
        """Run the file by ONNX Runtime, and compare the net with it.

        Compares every value of the file that is a blob of the net, and the outputs once more with
        fused layers.

        Args:
            inputs: An array for each input; None for random ones.
            seed: Seed of random inputs.

        Raises:
            DataError: ONNX Runtime cannot load or run the file.
            DemitasseError: ONNX Runtime is not installed.
        """
        from demitasse.testing.comparison import Comparison, random_inputs, run_net
        from demitasse.testing.error_stats import Difference, error_stats
        from demitasse.testing.reference.onnx import OnnxModel

        device = str(self.net.device)
        result = Comparison("onnxruntime", [device])
        model = OnnxModel(self.source)
        given = model.converted(random_inputs(self.net, seed) if inputs is None else inputs)
        expected = {
            self.blobs[one.names[0]]: np.asarray(one.array, np.float32)
            for one in model.run(given)
            if one.names[0] in self.blobs
        }
        for by_layer, differences in ((True, result.differences), (False, result.fused)):
            found = run_net(
                self.net, self.net.device, given, backward=False, by_layer=by_layer,
                code=result.code,
            )  # fmt: skip
            differences += [
                Difference(one.layer, one.type, one.what, device,
                           error_stats(one.array, expected[one.wrote[0]]))
                for one in found
                if one.wrote[0] in expected
            ]  # fmt: skip
        return result


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
    """Turn an ONNX model into a net with weights.

    Blobs and layers have the names of values and nodes. Values that depend on no input are computed
    once, at import.

    Args:
        model: The ONNX file.
        prototxt: The file to write the net to; None for none.
        caffemodel: The file to write the weights to; None for none.
        shapes: Shapes of inputs, in place of those in the file.
        batch: First size of inputs; None for that of the file, or 1 for a symbolic one.
        check: Run the file by ONNX Runtime on random inputs and compare the net with it.
        device: Device of the net; None for the configured one.

    Returns:
        The net, and the written files.

    Raises:
        NetError: Some nodes have no layer (names all; writes nothing), or ``check`` finds a
            difference.
        ConfigError: An argument has an invalid value, or sizes of inputs are unknown.
        DataError: The file cannot be read.
        DemitasseError: onnx is not installed.
    """
    if (prototxt is None) != (caffemodel is None):
        message = "got one of prototxt and caffemodel, expected both or none"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="caffemodel")
    if batch is not None and not (hasattr(batch, "__index__") and batch > 0):
        message = f"got batch {batch!r}, expected a number above 0"
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="batch", got=batch)
    source = Path(model)
    named = [Path(one) for one in (source, prototxt, caffemodel) if one is not None]
    if len({real_path(one) for one in named}) < len(named):
        message = f"got {', '.join(map(str, named))}, expected different files"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="prototxt", got=named)
    read = read_model(source, shapes or {}, batch)
    try:
        builder = _build(read)
    except NetError as error:
        raise error.at(str(source)) from None
    net = Net(builder.message, phase="TEST", device=device)
    _set_weights(net, read, builder)
    builder.notes += _batch_notes(read, net, builder.blobs)
    result = Imported(source, [], net, dict(builder.blobs), builder.notes)
    if check:
        result.compare().check_agreement(f"the net disagrees with {source}", "float32")
    if prototxt is not None and caffemodel is not None:
        result.files = [Path(prototxt), Path(caffemodel)]
        _write(builder, *result.files)
    return result


def _batch_notes(read: Model, net: Net, blobs: Mapping[str, str]) -> list[str]:
    """Return a note if the net does not follow the model to a larger batch.

    The first of one item, for example, is the whole batch, and needs no layer.
    """
    if not read.larger:
        return []
    for node in read.nodes:
        if _counts_from_last(node) and read.larger[node.x.name][0] != node.x.shape[0]:
            return [f"for another batch, import again: {node.label} counts from the last item"]
    names = [name for name, value in read.values.items() if name in blobs and value.shape]
    try:
        net.reshape({name: read.larger[name] for name in read.free})
        odd = [name for name in names if net.blobs[blobs[name]].shape != read.larger[name]]
    except DemitasseError as error:
        return [f"for another batch, import again: {error.message}"]
    finally:
        net.reshape({name: read.values[name].shape for name in read.free})
    return [f"for another batch, import again: {one!r} has another shape there" for one in odd[:1]]


def _counts_from_last(node: Node) -> bool:
    """Return True if a node selects items along the first axis by negative constants."""
    if node.op == "Gather":
        indices = node.input(1).array
        return node.axis(0) == 0 and indices is not None and bool(np.any(indices < 0))
    starts = node.attribute_or_input("starts", 1) if node.op == "Slice" else None
    if starts is None:
        return False
    axes = node.attribute_or_input("axes", 3)
    along = range(len(node.x.shape)) if axes is None else axes % len(node.x.shape)
    return any(axis == 0 and start < 0 for axis, start in zip(along, starts, strict=False))


def _write(builder: NetBuilder, prototxt: Path, caffemodel: Path) -> None:
    """Write both files, or none."""
    messages = list(builder.message.layer)
    blobs = [[(array, None) for array in builder.weights.get(one.name, [])] for one in messages]
    with atomic_write(prototxt) as text, atomic_write(caffemodel) as binary:
        text.write(text_of(builder.message).encode())
        for piece in caffemodel_pieces(builder.message.name, messages, blobs):
            binary.write(piece)


def _build(model: Model) -> NetBuilder:
    """Convert the nodes of a model to layers."""
    builder = NetBuilder(model.name or "net", [*model.values, *model.outputs])
    for value in model.inputs:
        builder.input(value)
    other = sorted({one.dtype for node in model.nodes for one in node.outputs if one is not None}
                   & (FLOATS - {"float32"}))  # fmt: skip
    if other:
        builder.notes.append(f"values of {' and '.join(other)} are computed in float32")
    faults = dict(model.faults)
    lost: set[str] = set()  # outputs of nodes without a layer
    for node in fused_nodes(model):
        follows_fault = any(one is not None and one.name in lost for one in node.inputs)
        fault = "" if follows_fault else _convert(node, builder)
        if fault:
            faults[node.label] = fault
        if fault or follows_fault:
            lost.update(one.name for one in node.outputs if one is not None)
    if faults:
        lines = listed([f"  {label}: {reason}" for label, reason in faults.items()])
        subject = "1 node has" if len(faults) == 1 else f"{len(faults)} nodes have"
        refuse(f"{subject} no Caffe layer:\n{lines}", nodes=list(faults))
    for name in model.outputs:  # each has a blob of its name
        result = model.values.get(name)
        if result is None:
            refuse(f"no node computes output {name!r}", ErrorCode.MISSING, output=name)
        builder.begin(name, name)
        blob = builder.blob(result)
        if blob != name:
            builder.assign(builder.power(blob), result)
        if any(name in layer.bottom for layer in builder.message.layer):
            reason = "layers read it; name it as an output, or read the blob"
            builder.notes.append(f"output {name!r} is no output of the net, as {reason}")
    return builder


def _convert(node: Node, builder: NetBuilder) -> str:
    """Add the layers of a node; return why there are none, or ""."""
    fault = _value_fault(node)
    if fault:
        return fault
    if node.op not in CONVERTERS:
        return REASONS.get(node.op, "no layer computes this operator")
    last = next((one.name for one in reversed(node.outputs) if one is not None), "")
    builder.begin(node.name, last)
    try:
        found = CONVERTERS[node.op](node, builder)
        blobs = [found] if isinstance(found, str) else found
        for blob, output in zip(blobs, node.outputs, strict=False):
            if output is not None:
                builder.assign(blob, output)
    except NetError as error:
        return error.message
    except FAULTS as error:
        return f"its attributes or inputs are inconsistent ({error!r})"
    return ""


def _value_fault(node: Node) -> str:
    """Return why blobs cannot have a node's values; "" if they can."""
    values = [one for one in (*node.inputs, *node.outputs) if one is not None]
    odd = [one.dtype for one in values if one.dtype not in NUMBERS]
    if odd:
        return f"it has values of type {odd[0]}, which blobs do not support"
    if any(one.array is None and not math.prod(one.shape) for one in values):
        return "it has values without elements, which blobs do not support"
    if any(math.prod(one.shape) > LARGEST for one in values):
        return f"it has values of more than {LARGEST} elements"
    if node.op in WRAPPING and node.y.dtype in NARROW_INTEGERS | {"uint32", "uint64"}:
        return f"{node.y.dtype} wraps around; blobs are float32"
    return ""


def _set_weights(net: Net, model: Model, builder: NetBuilder) -> None:
    """Copy the weights to the parameters, and compare the shapes of blobs with those of values."""
    for name, arrays in builder.weights.items():
        blobs, expected = net.params[name], [array.shape for array in arrays]
        found = [blob.shape for blob in blobs]
        if found != expected:
            fault = f"layer {name!r}: got parameters of shapes {found}, expected {expected}"
            refuse(fault, ErrorCode.SHAPE_MISMATCH, layer=name)
        for blob, array in zip(blobs, arrays, strict=True):
            blob.mutable_cpu_data()[...] = array
    for name, top in builder.blobs.items():
        shape, wanted = net.blobs[top].shape, model.values[name].shape
        if shape != wanted:
            fault = f"blob {top!r}: got shape {shape}, expected {wanted} of {name!r}"
            refuse(fault, ErrorCode.SHAPE_MISMATCH, blob=top)
