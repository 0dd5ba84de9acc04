"""ONNX models: conversion of a layer graph, preprocessing of images, float16."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from demitasse.errors import ConfigError, DemitasseError, ErrorCode
from demitasse.interop.export.layer_graph import LayerGraph, Value
from demitasse.interop.onnx_export.converters import CONVERTERS
from demitasse.interop.onnx_export.files import Model, library
from demitasse.interop.onnx_export.graph import Array, GraphBuilder
from demitasse.version import __version__

FLOAT32_INPUTS = {"NonMaxSuppression": range(5)}
"""Operator -> inputs that ONNX supports in float32 only."""

LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of images: RGB to BGR, minus the mean, times the scale.

    Attributes:
        mean: Mean to subtract: a number, one for each channel in the net's order, or an array
            (C, H, W).
        scale: Factor after the subtraction.
        bgr: Convert RGB images to BGR.
        uint8: Take images as uint8 instead of float32.
        input: Name of the input; empty for the first input of four axes.
    """

    mean: float | Sequence[float] | np.ndarray | None = None
    scale: float = 1.0
    bgr: bool = False
    uint8: bool = False
    input: str = ""

    def applied(self, images: np.ndarray) -> np.ndarray:
        """Return preprocessed images. Shape: (N, C, H, W)."""
        values = images[:, ::-1] if self.bgr else images
        found = values.astype(np.float32)
        if self.mean is not None:
            found = found - self.mean_for(images.shape)
        return found * np.float32(self.scale)

    def mean_for(self, shape: Sequence[int]) -> np.ndarray:
        """Return the mean in a shape that broadcasts; the center of a larger mean image.

        Args:
            shape: Shape of the images, (N, C, H, W).

        Raises:
            ConfigError: The mean does not fit the images.
        """
        try:
            mean = np.asarray(self.mean, np.float32)
        except (TypeError, ValueError):
            message = f"got mean {self.mean!r}, expected numbers; read a file, such as by np.load"
            raise ConfigError(message, code=ErrorCode.INVALID, field="mean") from None
        if mean.ndim == 4 and mean.shape[0] == 1:
            mean = mean[0]
        if mean.ndim == 3:
            above, left = ((a - b) // 2 for a, b in zip(mean.shape[1:], shape[2:], strict=True))
            if above >= 0 and left >= 0:
                mean = mean[:, above : above + shape[2], left : left + shape[3]]
        elif mean.ndim == 1:
            mean = mean.reshape(-1, 1, 1)
        fits = mean.ndim in {0, 3} and all(
            have in {1, want} for have, want in zip(mean.shape, shape[1:], strict=False)
        )
        if not fits:
            message = (
                f"got a mean of shape {mean.shape} for images {tuple(shape)}, expected a number, "
                "one for each channel, or (C, H, W) at least as large as the images"
            )
            raise ConfigError(
                message, code=ErrorCode.SHAPE_MISMATCH, field="mean", got=mean.shape,
                expected=tuple(shape),
            )  # fmt: skip
        return mean

    def chosen(self, inputs: Sequence[Value]) -> Value:
        """Return the input that takes images."""
        for one in inputs:
            if one.name == self.input or (not self.input and len(one.shape) == 4):
                return one
        names = [one.name for one in inputs]
        message = f"no input {self.input!r} of images; inputs are {names}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="input", got=self.input)


def build_model(
    layers: LayerGraph, name: str, opset: int, preprocess: Preprocess | None = None
) -> Model:
    """Convert a layer graph to an ONNX model, for a net of this name."""
    onnx = library("onnx")
    tops = [top for node in layers.nodes for top in node.tops]
    names = [value.name for value in (*layers.inputs, *tops)]
    graph = GraphBuilder(opset, [*names, *layers.outputs])
    for value in layers.inputs:
        graph.size_sources.record(value.name, value.sizes)
    prepared: dict[Value, Value] = {}  # image -> preprocessed image
    if preprocess is not None:
        image = preprocess.chosen(layers.inputs)
        prepared[image] = replace(image, name=_preprocess(preprocess, image, graph).name)
    for node in layers.nodes:
        bottoms = tuple(prepared.get(value, value) for value in node.bottoms)
        with graph.layer(node.layer.name):
            try:
                found = CONVERTERS[node.layer.type](replace(node, bottoms=bottoms), graph)
            except DemitasseError as error:
                raise error.at(node.label, layer=node.layer.name) from None
            results = [found] if isinstance(found, Array | Value) else found
            for result, top in zip(results, node.tops, strict=False):
                graph.assign(result, top)
                graph.size_sources.record(top.name, top.sizes)
    for output, value in layers.outputs.items():
        if output != value.name:
            graph.assign(prepared.get(value, value), replace(value, name=output))
    uint8 = prepared if preprocess is not None and preprocess.uint8 else ()
    inputs = [_value_info(value, value.name, uint8=value in uint8) for value in layers.inputs]
    outputs = [_value_info(value, output) for output, value in layers.outputs.items()]
    others = [_value_info(top, top.name) for top in tops if top.name not in layers.outputs]
    made = onnx.helper.make_graph(graph.nodes, name or "net", inputs, outputs, value_info=others)
    imports = [onnx.helper.make_opsetid("", opset)]
    message = onnx.helper.make_model(
        made,
        opset_imports=imports,
        ir_version=onnx.helper.find_min_ir_version_for(imports),
        producer_name="demitasse",
        producer_version=__version__,
        doc_string=f"The Caffe net {name!r} in phase TEST",
    )
    return Model(message, graph.constants)


def _preprocess(preprocess: Preprocess, image: Value, graph: GraphBuilder) -> Array:
    """Add the preprocessing of an input."""
    x = Array(graph, image.name)
    with graph.layer("preprocess"):
        if preprocess.uint8:
            x = graph.to_float(x)
        if preprocess.bgr:
            x = graph.add("Gather", x, range(image.shape[1])[::-1], axis=1)
        if preprocess.mean is not None:
            x -= graph.constant(preprocess.mean_for(image.shape), "mean")
        return x if preprocess.scale == 1 else x * float(preprocess.scale)


def _value_info(value: Value, name: str, *, uint8: bool = False) -> Any:
    """Return a name, and type and shape of a value."""
    onnx = library("onnx")
    kind = onnx.TensorProto.UINT8 if uint8 else onnx.TensorProto.FLOAT
    return onnx.helper.make_tensor_value_info(name, kind, value.texts)


# -- float16 -------------------------------------------------------------------------------------


def to_half(model: Model) -> None:
    """Convert a model to float16, except for its inputs, outputs and indices.

    Float16 is exact for integers up to 2048 only, so indices between two conversions, and inputs
    and outputs of indices, stay float32.
    """
    onnx, graph, constants = library("onnx"), model.message.graph, model.constants
    types = onnx.TensorProto
    float32, float16, int64 = types.FLOAT, types.FLOAT16, types.INT64

    def cast(source: str, target: str, name: str, kind: int) -> Any:
        return onnx.helper.make_node("Cast", [source], [target], name=f"{name}/Cast", to=kind)

    inputs, outputs = (
        [one.name for one in infos if one.type.tensor_type.elem_type == float32]
        for infos in (graph.input, graph.output)
    )
    read_as_indices = {*outputs, *(x.input[0] for x in graph.node if _casts_to(x, int64))}
    converted_to = {x.output[0] for x in graph.node if _casts_to(x, float32)}
    indices = converted_to & read_as_indices
    inside = {name: f"{name}@float16" for name in (*inputs, *indices)}
    outside = {name: f"{name}@float16" for name in outputs if name not in indices}
    kept = {name for node in graph.node for _, name in _float32_inputs(node)} & constants.keys()
    for name, array in constants.items():
        if name not in kept and array.dtype == np.float32:
            constants[name] = _halved(array)
    nodes: list[Any] = []
    made = set[str]()  # outputs of the casts so far

    def converted(name: str, target: str, kind: int) -> str:
        """Return the value of this name after a cast, which is added once."""
        if target not in made:
            made.add(target)
            nodes.append(cast(name, target, target, kind))
        return target

    for node in graph.node:
        if not _casts_to(node, int64):
            node.input[:] = [
                converted(name, inside[name], float16) if name in inside else name
                for name in node.input
            ]
        if node.output[0] not in indices:
            _convert_node(node)
        node.input[:] = [outside.get(name, name) for name in node.input]
        node.output[:] = [outside.get(name, name) for name in node.output]
        for number, name in _float32_inputs(node):
            if name not in kept and not (name in constants and constants[name].dtype.kind == "i"):
                node.input[number] = converted(name, f"{name}@float32", float32)
        nodes.append(node)
    nodes += [cast(half, name, half, float32) for name, half in outside.items()]
    copied = onnx.GraphProto(node=nodes)  # copies, as the nodes belong to the graph
    del graph.node[:]
    graph.node.extend(copied.node)
    _set_float16(one for one in graph.value_info if one.name not in indices)


def _casts_to(node: Any, kind: int) -> bool:
    """Return True for a Cast to an element type."""
    return bool(node.op_type == "Cast" and node.attribute[0].i == kind)


def _float32_inputs(node: Any) -> list[tuple[int, str]]:
    """Return index and name of the inputs that ONNX supports in float32 only."""
    numbers = FLOAT32_INPUTS.get(node.op_type, ())
    return [(number, name) for number, name in enumerate(node.input) if name and number in numbers]


def _set_float16(infos: Iterable[Any]) -> None:
    kinds = library("onnx").TensorProto
    for info in infos:
        if info.type.tensor_type.elem_type == kinds.FLOAT:
            info.type.tensor_type.elem_type = kinds.FLOAT16


def _convert_node(node: Any) -> None:
    """Convert the attributes of a node, and the nodes inside, to float16."""
    onnx = library("onnx")
    float32 = onnx.TensorProto.FLOAT
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == float32:
            attribute.i = onnx.TensorProto.FLOAT16
        if attribute.HasField("t") and attribute.t.data_type == float32:
            values = _halved(onnx.numpy_helper.to_array(attribute.t))
            attribute.t.CopyFrom(onnx.numpy_helper.from_array(values, attribute.t.name))
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                _convert_node(inner)
            _set_float16((*attribute.g.input, *attribute.g.output))


def _halved(values: np.ndarray) -> np.ndarray:
    """Return finite values in float16, clamped to its range."""
    limited = np.where(np.isfinite(values), np.clip(values, -LARGEST, LARGEST), values)
    return limited.astype(np.float16)
