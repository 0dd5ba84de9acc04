"""What a model computes from constants alone, computed once: arithmetic on shapes, mostly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from demitasse.intake.source import Tensor

__all__ = ["folded"]

FOLDABLE = {
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div", "Equal",
    "Expand", "Flatten", "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less",
    "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Range", "Reciprocal",
    "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "ScatterND", "Slice", "Split",
    "Sqrt", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
}  # fmt: skip
"""Operators that are computed where all they read is constant; each costs little."""

MOST = 2**28
"""Elements of an array that is computed."""


def folded(
    onnx: Any, node: Any, inputs: Mapping[str, Tensor], sizes: list[int], opset: int
) -> list[np.ndarray] | None:
    """Return a node's outputs, or None where they are not constant.

    Args:
        onnx: The module.
        node: The message.
        inputs: What it reads.
        sizes: How many elements each output has.
        opset: Version of the operators.
    """
    if node.op_type in {"Shape", "Size"}:
        shape = inputs[node.input[0]].shape
        if node.op_type == "Size":
            return [np.array(math.prod(shape), np.int64)]
        ends = {one.name: one.i for one in node.attribute}
        return [np.array(shape[ends.get("start", 0) : ends.get("end", len(shape))], np.int64)]
    arrays = {name: one.array for name, one in inputs.items()}
    if (
        node.op_type not in FOLDABLE
        or max(sizes) > MOST
        or any(array is None for array in arrays.values())
    ):
        return None
    helper = onnx.helper
    graph = helper.make_graph(
        [node],
        "constants",
        [helper.make_empty_tensor_value_info(name) for name in inputs],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        return [np.asarray(one) for one in ReferenceEvaluator(model).run(None, arrays)]
