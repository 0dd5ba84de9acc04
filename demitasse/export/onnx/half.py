"""A model with numbers of 16 bits inside; inputs and outputs keep theirs."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse.export.onnx.library import library

__all__ = ["to_half"]

FLOAT32_INPUTS = {"NonMaxSuppression": range(5)}
"""Operator -> the inputs that ONNX takes as float32 alone."""

LARGEST = float(np.finfo(np.float16).max)


def to_half(model: Any) -> None:
    """Turn every float32 of a model into a float16, but for inputs and outputs."""
    _Half(model.graph).convert()


class _Half:
    def __init__(self, graph: Any) -> None:
        self.graph, self.onnx = graph, library("onnx")
        kinds = self.onnx.TensorProto
        self.float32, self.float16 = kinds.FLOAT, kinds.FLOAT16

    def convert(self) -> None:
        graph, make = self.graph, self.onnx.helper.make_node
        wide = [one.name for one in graph.input if self._is_wide(one)]
        inside = {name: f"{name}@float16" for name in wide}
        outside = {one.name: f"{one.name}@float16" for one in graph.output if self._is_wide(one)}
        kept = self._kept_constants()
        for tensor in graph.initializer:
            if tensor.name not in kept:
                self._tensor(tensor)
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
        kinds = {one.name: one.data_type for one in self.graph.initializer}
        return name in kinds and kinds[name] not in {self.float32, self.float16}

    def _kept_constants(self) -> set[str]:
        """Return the constants that only operators read which take float32 alone."""
        return {
            node.input[number]
            for node in self.graph.node
            for number in FLOAT32_INPUTS.get(node.op_type, ())
            if number < len(node.input)
        } & {one.name for one in self.graph.initializer}

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
            values = self.onnx.numpy_helper.to_array(tensor)
            limits = np.where(np.isfinite(values), np.clip(values, -LARGEST, LARGEST), values)
            made = self.onnx.numpy_helper.from_array(limits.astype(np.float16), tensor.name)
            tensor.CopyFrom(made)
