"""A model with numbers of 16 bits inside; inputs and outputs keep theirs."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse.interop.export.onnx.files import Model
from demitasse.interop.export.onnx.library import library

__all__ = ["to_half"]

FLOAT32_INPUTS = {"NonMaxSuppression": range(5)}
"""Operator -> the inputs that ONNX takes as float32 alone."""

LARGEST = float(np.finfo(np.float16).max)


def to_half(model: Model) -> None:
    """Turn every float32 of a model into a float16, but for inputs and outputs."""
    _Half(model).convert()


class _Half:
    def __init__(self, model: Model) -> None:
        self.graph, self.constants, self.onnx = (
            model.message.graph,
            model.constants,
            library("onnx"),
        )
        kinds = self.onnx.TensorProto
        self.float32, self.float16 = kinds.FLOAT, kinds.FLOAT16

    def convert(self) -> None:
        graph, make = self.graph, self.onnx.helper.make_node
        wide = [one.name for one in graph.input if self._is_wide(one)]
        inside = {name: f"{name}@float16" for name in wide}
        outside = {one.name: f"{one.name}@float16" for one in graph.output if self._is_wide(one)}
        kept = self._kept_constants()
        for name, array in self.constants.items():
            if name not in kept and array.dtype == np.float32:
                self.constants[name] = _halved(array)
        nodes = [
            make("Cast", [name], [half], name=f"{half}/Cast", to=self.float16)
            for name, half in inside.items()
        ]
        for node in graph.node:
            self._node(node)
            node.input[:] = [inside.get(name, outside.get(name, name)) for name in node.input]
            node.output[:] = [outside.get(name, name) for name in node.output]
            numbers = FLOAT32_INPUTS.get(node.op_type, ())
            for number in numbers:
                name = node.input[number] if number < len(node.input) else ""
                if name and name not in kept and not self._is_whole(name):
                    single = f"{name}@float32"
                    if all(one.output[0] != single for one in nodes):
                        cast = make(
                            "Cast", [name], [single], name=f"{single}/Cast", to=self.float32
                        )
                        nodes.append(cast)
                    node.input[number] = single
            nodes.append(node)
        nodes += [
            make("Cast", [half], [name], name=f"{half}/Cast", to=self.float32)
            for name, half in outside.items()
        ]
        made = [self._copy(node) for node in nodes]
        del graph.node[:]
        graph.node.extend(made)
        for info in graph.value_info:
            if self._is_wide(info):
                info.type.tensor_type.elem_type = self.float16

    def _copy(self, node: Any) -> Any:
        copy = self.onnx.NodeProto()
        copy.CopyFrom(node)
        return copy

    def _is_wide(self, info: Any) -> bool:
        return bool(info.type.tensor_type.elem_type == self.float32)

    def _is_whole(self, name: str) -> bool:
        """Whether a constant holds integers."""
        return name in self.constants and self.constants[name].dtype.kind == "i"

    def _kept_constants(self) -> set[str]:
        """Return the constants that only operators read which take float32 alone."""
        return {
            node.input[number]
            for node in self.graph.node
            for number in FLOAT32_INPUTS.get(node.op_type, ())
            if number < len(node.input)
        } & set(self.constants)

    def _node(self, node: Any) -> None:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == self.float32:
                attribute.i = self.float16
            if attribute.HasField("t"):
                self._tensor(attribute.t)
            if attribute.HasField("g"):
                for inner in attribute.g.node:
                    self._node(inner)
                for info in (*attribute.g.input, *attribute.g.output):
                    if self._is_wide(info):
                        info.type.tensor_type.elem_type = self.float16

    def _tensor(self, tensor: Any) -> None:
        if tensor.data_type == self.float32:
            values = _halved(self.onnx.numpy_helper.to_array(tensor))
            tensor.CopyFrom(self.onnx.numpy_helper.from_array(values, tensor.name))


def _halved(values: np.ndarray) -> np.ndarray:
    """Return float16, the largest there is for what is larger."""
    limited = np.where(np.isfinite(values), np.clip(values, -LARGEST, LARGEST), values)
    return limited.astype(np.float16)
