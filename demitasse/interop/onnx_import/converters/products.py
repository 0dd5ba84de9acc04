"""Converters of matrix products, reductions and gathers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse.interop.onnx_import.converters.arithmetic import add
from demitasse.interop.onnx_import.model import Node, Tensor, refuse
from demitasse.interop.onnx_import.net_builder import Converter, NetBuilder


def _gemm(node: Node, net: NetBuilder) -> None:
    at, weight = node.attributes, node.array(1, "weight")
    x, bias = net.blob(node.x), node.optional_input(2)
    if at.get("transA"):
        x = net.permute(x, [1, 0])
    rows = weight if at.get("transB") else weight.T
    rows = rows * np.float32(at.get("alpha", 1.0))
    outputs = rows.shape[0]
    plain = bias is None or (bias.array is not None and bias.shape in {(outputs,), (1, outputs)})
    one = bias is not None and bias.array is not None and bias.array.size == 1
    factor = np.float32(at.get("beta", 1.0))
    if plain or one:
        given = None if bias is None or bias.array is None else bias.array
        vector = None if given is None else np.broadcast_to(given.reshape(-1), outputs) * factor
        _inner_product(net, x, rows, vector, 1, to=node.y)
        return
    found = _inner_product(net, x, rows, None, 1, to=None)
    if bias is not None and bias.array is not None:
        add(net, found, bias.array * factor, node.y.shape, to=node.y)
    elif bias is not None:
        other = net.blob(bias)
        other = other if factor == 1 else net.power(other, scale=float(factor))
        add(net, found, other, node.y.shape, to=node.y)


def _matmul(node: Node, net: NetBuilder) -> None:
    """Add InnerProduct along the last axis."""
    if node.x.array is not None or node.input(1).array is None:
        refuse("expected a computed left operand and a constant right one (InnerProduct)")
    weight, shape = node.array(1, "weight"), node.x.shape
    if weight.ndim != 2 or len(shape) < 2:
        refuse(f"got operands of shapes {shape} and {weight.shape}, expected rows and a matrix")
    _inner_product(net, net.blob(node.x), weight.T, None, len(shape) - 1, to=node.y)


def _inner_product(
    net: NetBuilder,
    x: str,
    rows: np.ndarray,
    bias: np.ndarray | None,
    axis: int,
    *,
    to: Tensor | None,
) -> str:
    fields: dict[str, Any] = {"num_output": rows.shape[0]}
    weights = [rows]
    if axis != 1:
        fields["axis"] = axis
    if bias is None:
        fields["bias_term"] = False
    else:
        weights.append(bias)
    shape = (*net.shapes[x][:axis], rows.shape[0])
    return net.add("InnerProduct", [x], shape, to=to, weights=weights, inner_product_param=fields)


def _gather(node: Node, net: NetBuilder) -> None:
    """Add Embed for rows of a constant, Slice for consecutive indices, or BatchReindex."""
    x, indices, axis = node.x, node.input(1), node.axis(0)
    if x.array is not None:
        _embed(node, net, x.array, indices, axis)
        return
    if indices.array is None:
        refuse("values and indices are both computed")
    size = x.shape[axis]
    chosen = (indices.array.reshape(-1).astype(np.int64) + size) % size
    blob, first = net.blob(x), int(chosen[0])
    if np.array_equal(chosen, first + np.arange(chosen.size)):
        blob = net.slice(blob, axis, first, first + chosen.size)
    else:
        blob = net.gather(blob, axis, chosen)
    net.reshape(blob, node.y.shape, to=node.y)


def _embed(node: Node, net: NetBuilder, table: np.ndarray, indices: Tensor, axis: int) -> None:
    if table.ndim != 2 or axis != 0:
        refuse(f"got axis {axis} of a constant {table.shape}, expected rows of a matrix (Embed)")
    fields = {"num_output": table.shape[1], "input_dim": table.shape[0], "bias_term": False}
    net.add("Embed", [net.blob(indices)], node.y.shape, to=node.y, weights=[table],
            embed_param=fields)  # fmt: skip


def _reduction(operation: str, power: float = 1, sign: float = 1) -> Converter:
    """Return a converter of a reduction."""

    def convert(node: Node, net: NetBuilder) -> None:
        axes = _axes(node)
        x = net.blob(node.x)
        if not axes:
            net.alias(node.y, x)
            return
        x = x if sign == 1 else net.power(x, scale=sign)
        found = _reduced(net, x, axes, operation, node, last=power == sign == 1)
        if power != 1:
            found = net.power(found, power=power, to=node.y)
        elif sign != 1:
            net.power(found, scale=sign, to=node.y)

    return convert


def _reduced(
    net: NetBuilder, x: str, axes: Sequence[int], operation: str, node: Node, *, last: bool
) -> str:
    """Add a reduction over axes, and a Reshape to the node's output."""
    shape, to = net.shapes[x], node.y if last else None
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    fields: dict[str, Any]
    image = len(shape) == 4 and list(axes) == [2, 3]
    if image and operation in {"MEAN", "MAX"}:
        fields = {"pool": "AVE" if operation == "MEAN" else "MAX", "global_pooling": True}
        small = (*shape[:2], 1, 1)
        same = last and node.y.shape == small
        x = net.add("Pooling", [x], small, to=to if same else None, pooling_param=fields)
        return x if same else net.reshape(x, node.y.shape, to=to)
    if [*kept, *axes] != list(range(len(shape))):
        x = net.permute(x, [*kept, *axes])
    out = tuple(shape[axis] for axis in kept)
    if operation == "MAX":
        lead = out or (1,)
        x = net.reshape(x, (*lead, math.prod(shape[axis] for axis in axes)))
        x = net.add("ArgMax", [x], (*lead, 1),
                    argmax_param={"axis": len(lead), "out_max_val": True})  # fmt: skip
        return net.reshape(x, node.y.shape, to=to)
    same = last and node.y.shape == out
    fields = {"axis": len(out), "operation": operation}
    x = net.add("Reduction", [x], out, to=to if same else None, reduction_param=fields)
    return x if same else net.reshape(x, node.y.shape, to=to)


def _axes(node: Node) -> list[int]:
    """Return the reduced axes, counted from the first."""
    given = node.attribute_or_input("axes", 1)
    if given is None or not given.size:
        if node.attributes.get("noop_with_empty_axes"):
            return []
        return list(range(len(node.x.shape)))
    return sorted(int(axis) % len(node.x.shape) for axis in given.reshape(-1))


def _argmax(node: Node, net: NetBuilder) -> None:
    """Add ArgMax along an axis, of reversed values if ONNX selects the first of equal ones."""
    shape, axis = node.x.shape, node.axis(0)
    x, size = net.blob(node.x), shape[axis]
    kept, fields = (*shape[:axis], 1, *shape[axis + 1 :]), {"axis": axis}
    last = bool(node.attributes.get("select_last_index", 0))
    if not last:
        x = net.gather(x, axis, np.arange(size)[::-1])
    to = node.y if node.y.shape == kept else None
    x = net.add("ArgMax", [x], kept, to=to if last else None, argmax_param=fields)
    if not last:
        x = net.power(x, scale=-1, shift=size - 1, to=to)
    if to is None:
        net.reshape(x, node.y.shape, to=node.y)


CONVERTERS: Mapping[str, Converter] = {
    "ArgMax": _argmax,
    "Gather": _gather,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "ReduceL1": _reduction("ASUM"),
    "ReduceL2": _reduction("SUMSQ", power=0.5),
    "ReduceMax": _reduction("MAX"),
    "ReduceMean": _reduction("MEAN"),
    "ReduceMin": _reduction("MAX", sign=-1),
    "ReduceSum": _reduction("SUM"),
    "ReduceSumSquare": _reduction("SUMSQ"),
}
