"""What a model computes from constants alone, computed once: arithmetic on shapes, mostly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse.interop.onnx_import.source import FLOATS, WHOLE, Shape, Tensor

__all__ = ["Folding"]

FOLDABLE = {
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div", "Equal",
    "Expand", "Flatten", "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less",
    "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Range", "Reciprocal",
    "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "ScatterND", "Slice", "Split",
    "Sqrt", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
}  # fmt: skip
"""Operators that are computed where all they read is constant; each costs little."""

MOST = 2**28
"""Elements of all arrays together that are computed, beside as many as the file has."""

NUMBERS = FLOATS | WHOLE
"""What arrays that are computed may be of; a text for each element would take far more memory."""


class Folding:
    """Computes what depends on constants alone.

    Args:
        onnx: The module.
        opset: Version of the operators.
        given: How many elements the constants of the file have.
    """

    def __init__(self, onnx: Any, opset: int, given: int) -> None:
        self._onnx, self._opset, self._left = onnx, opset, MOST + given

    def of(
        self, node: Any, inputs: Mapping[str, Tensor], outputs: Sequence[Tensor]
    ) -> list[np.ndarray] | None:
        """Return a node's outputs, or None where they are not constant, or too large.

        Args:
            node: The message.
            inputs: What it reads.
            outputs: What it computes, as far as it has names.
        """
        if node.op_type in {"Shape", "Size"}:
            return [_shape_or_size(node, inputs[node.input[0]].shape)]
        arrays = {name: one.array for name, one in inputs.items()}
        if (
            node.op_type not in FOLDABLE
            or any(one.dtype not in NUMBERS for one in outputs)
            or any(array is None for array in arrays.values())
        ):
            return None
        size = sum(math.prod(one.shape) for one in outputs)
        if size > self._left:
            return None
        self._left -= size
        helper = self._onnx.helper
        graph = helper.make_graph(
            [node],
            "constants",
            [helper.make_empty_tensor_value_info(name) for name in inputs],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)])
        from onnx.reference import ReferenceEvaluator

        with np.errstate(all="ignore"):
            return [np.asarray(one) for one in ReferenceEvaluator(model).run(None, arrays)]


def _shape_or_size(node: Any, shape: Shape) -> np.ndarray:
    if node.op_type == "Size":
        return np.array(math.prod(shape), np.int64)
    ends = {one.name: one.i for one in node.attribute}
    return np.array(shape[ends.get("start", 0) : ends.get("end", len(shape))], np.int64)
