"""ONNX models: conversion of a layer graph, preprocessing of images, float16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from demitasse.errors import ConfigError, DemitasseError, ErrorCode
from demitasse.interop.export.layer_graph import LayerGraph, LayerNode, Value
from demitasse.interop.onnx_export.converters import CONVERTERS
from demitasse.interop.onnx_export.files import Model, library
from demitasse.interop.onnx_export.graph import GraphBuilder
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
        mean = np.asarray(self.mean, np.float32)
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
        """Return the input that takes images.

        Raises:
            ConfigError: No input has this name, or four axes.
        """
        for one in inputs:
            if one.name == self.input or (not self.input and len(one.shape) == 4):
                return one
        names = [one.name for one in inputs]
        message = f"no input {self.input!r} of images; inputs are {names}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="input", got=self.input)


def build_model(
    layers: LayerGraph, name: str, opset: int, preprocess: Preprocess | None = None
) -> Model:
    """Convert a layer graph to an ONNX model.

    Args:
        layers: The layer graph.
        name: Name of the net.
        opset: Opset version.
        preprocess: Preprocessing of images; None for none.

    Raises:
        DemitasseError: A layer cannot be converted; names the layer.
    """
    onnx = library("onnx")
    names = [value.name for value in layers.inputs]
    names += [top.name for node in layers.nodes for top in node.tops] + [*layers.outputs]
    graph = GraphBuilder(opset, names)
    renamed: dict[str, str] = {}
    for value in layers.inputs:
        graph.record_sizes(value)
    if preprocess is not None:
        image = preprocess.chosen(layers.inputs)
        renamed[image.name] = _preprocess(preprocess, image, graph)
    for node in layers.nodes:
        _convert(node, graph, renamed)
    for output, value in layers.outputs.items():
        if output != value.name:
            graph.add("Identity", renamed.get(value.name, value.name), to=output)
    uint8 = set(renamed) if preprocess is not None and preprocess.uint8 else set()
    inputs = [_value_info(value, uint8=value.name in uint8) for value in layers.inputs]
    outputs = [_value_info(value, output) for output, value in layers.outputs.items()]
    others = [
        _value_info(top)
        for node in layers.nodes
        for top in node.tops
        if top.name not in layers.outputs
    ]
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


def _preprocess(preprocess: Preprocess, image: Value, graph: GraphBuilder) -> str:
    """Add the preprocessing of an input; return the name of the result."""
    with graph.layer("preprocess"):
        x = graph.to_float(image.name) if preprocess.uint8 else image.name
        if preprocess.bgr:
            x = graph.add("Gather", x, graph.ints(range(image.shape[1])[::-1]), axis=1)
        if preprocess.mean is not None:
            x = graph.add("Sub", x, graph.constant(preprocess.mean_for(image.shape), "mean"))
        if preprocess.scale != 1:
            x = graph.add("Mul", x, graph.scalar(preprocess.scale))
    return x


def _convert(node: LayerNode, graph: GraphBuilder, renamed: Mapping[str, str]) -> None:
    bottoms = tuple(
        replace(value, name=renamed.get(value.name, value.name)) for value in node.bottoms
    )
    with graph.layer(node.layer.name):
        try:
            CONVERTERS[node.layer.type](replace(node, bottoms=bottoms), graph)
        except DemitasseError as error:
            raise error.at(node.label, layer=node.layer.name) from None
    for top in node.tops:
        graph.record_sizes(top)


def _value_info(value: Value, name: str | None = None, *, uint8: bool = False) -> Any:
    """Return the name, type and shape of a value."""
    onnx = library("onnx")
    kind = onnx.TensorProto.UINT8 if uint8 else onnx.TensorProto.FLOAT
    sizes = [size if isinstance(size, int) else str(size) for size in value.sizes]
    return onnx.helper.make_tensor_value_info(value.name if name is None else name, kind, sizes)


# -- float16 -------------------------------------------------------------------------------------


def to_half(model: Model) -> None:
    """Convert a model to float16, except for its inputs and outputs."""
    _HalfConversion(model).convert()


class _HalfConversion:
    def __init__(self, model: Model) -> None:
        self.graph, self.constants = model.message.graph, model.constants
        self.onnx = library("onnx")
        kinds = self.onnx.TensorProto
        self.float32, self.float16 = kinds.FLOAT, kinds.FLOAT16

    def convert(self) -> None:
        graph = self.graph
        inside = {one.name: f"{one.name}@float16" for one in graph.input if self._is_float(one)}
        outside = {one.name: f"{one.name}@float16" for one in graph.output if self._is_float(one)}
        kept = self._float32_constants()
        for name, array in self.constants.items():
            if name not in kept and array.dtype == np.float32:
                self.constants[name] = _halved(array)
        nodes = [self._cast(name, half, half) for name, half in inside.items()]
        for node in graph.node:
            self._convert_node(node)
            node.input[:] = [inside.get(name, outside.get(name, name)) for name in node.input]
            node.output[:] = [outside.get(name, name) for name in node.output]
            for number in FLOAT32_INPUTS.get(node.op_type, ()):
                name = node.input[number] if number < len(node.input) else ""
                if name and name not in kept and not self._is_integer(name):
                    single = f"{name}@float32"
                    if all(one.output[0] != single for one in nodes):
                        nodes.append(self._cast(name, single, single))
                    node.input[number] = single
            nodes.append(node)
        nodes += [self._cast(half, name, half) for name, half in outside.items()]
        made = [self._copy(node) for node in nodes]
        del graph.node[:]
        graph.node.extend(made)
        for info in graph.value_info:
            if self._is_float(info):
                info.type.tensor_type.elem_type = self.float16

    def _cast(self, source: str, target: str, name: str) -> Any:
        kind = self.float16 if target.endswith("@float16") else self.float32
        return self.onnx.helper.make_node("Cast", [source], [target], name=f"{name}/Cast", to=kind)

    def _copy(self, node: Any) -> Any:
        copy = self.onnx.NodeProto()
        copy.CopyFrom(node)
        return copy

    def _is_float(self, info: Any) -> bool:
        return bool(info.type.tensor_type.elem_type == self.float32)

    def _is_integer(self, name: str) -> bool:
        return name in self.constants and self.constants[name].dtype.kind == "i"

    def _float32_constants(self) -> set[str]:
        """Return the constants that inputs of type float32 read."""
        return {
            node.input[number]
            for node in self.graph.node
            for number in FLOAT32_INPUTS.get(node.op_type, ())
            if number < len(node.input)
        } & set(self.constants)

    def _convert_node(self, node: Any) -> None:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == self.float32:
                attribute.i = self.float16
            if attribute.HasField("t"):
                self._convert_tensor(attribute.t)
            if attribute.HasField("g"):
                for inner in attribute.g.node:
                    self._convert_node(inner)
                for info in (*attribute.g.input, *attribute.g.output):
                    if self._is_float(info):
                        info.type.tensor_type.elem_type = self.float16

    def _convert_tensor(self, tensor: Any) -> None:
        if tensor.data_type == self.float32:
            values = _halved(self.onnx.numpy_helper.to_array(tensor))
            tensor.CopyFrom(self.onnx.numpy_helper.from_array(values, tensor.name))


def _halved(values: np.ndarray) -> np.ndarray:
    """Return finite values in float16, clamped to its range."""
    limited = np.where(np.isfinite(values), np.clip(values, -LARGEST, LARGEST), values)
    return limited.astype(np.float16)
