"""Converters of matrix products, reductions and gathers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse.interop.onnx_import.converters.arithmetic import add
from demitasse.interop.onnx_import.model import Node, Shape, Tensor, refuse
from demitasse.interop.onnx_import.net_builder import Converter, NetBuilder, Result


def _gemm(node: Node, net: NetBuilder) -> Result:
    at, weight = node.attributes, node.array(1, "weight")
    x, bias = net.blob(node.x), node.optional_input(2)
    if at.get("transA"):
        x = net.permute(x, [1, 0])
    rows = weight if at.get("transB") else weight.T
    rows = rows * np.float32(at.get("alpha", 1.0))
    outputs = rows.shape[0]
    factor = np.float32(at.get("beta", 1.0))
    if bias is None:
        return _inner_product(net, x, rows, None, 1)
    plain = bias.shape in {(outputs,), (1, outputs)} or math.prod(bias.shape) == 1
    if bias.array is not None and plain:
        vector = np.broadcast_to(bias.array.reshape(-1), outputs) * factor
        return _inner_product(net, x, rows, vector, 1)
    found = _inner_product(net, x, rows, None, 1)
    if bias.array is not None:
        return add(net, found, bias.array * factor, node.y.shape)
    other = net.blob(bias)
    other = other if factor == 1 else net.power(other, scale=float(factor))
    return add(net, found, other, node.y.shape)


def _matmul(node: Node, net: NetBuilder) -> Result:
    """Add InnerProduct along the last axis."""
    if node.x.array is not None or node.input(1).array is None:
        refuse("expected a computed left operand and a constant right one (InnerProduct)")
    weight, shape = node.array(1, "weight"), node.x.shape
    if weight.ndim != 2 or len(shape) < 2:
        refuse(f"got operands of shapes {shape} and {weight.shape}, expected rows and a matrix")
    return _inner_product(net, net.blob(node.x), weight.T, None, len(shape) - 1)


def _inner_product(
    net: NetBuilder, x: str, rows: np.ndarray, bias: np.ndarray | None, axis: int
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
    return net.add("InnerProduct", [x], shape, weights=weights, inner_product_param=fields)


def _gather(node: Node, net: NetBuilder) -> Result:
    """Add Embed for rows of a constant, Slice for consecutive indices, or BatchReindex."""
    x, indices, axis = node.x, node.input(1), node.axis(0)
    if x.array is not None:
        return _embed(net, x.array, indices, axis, node.y.shape)
    if indices.array is None:
        refuse("values and indices are both computed")
    size = x.shape[axis]
    chosen = (indices.array.reshape(-1).astype(np.int64) + size) % size
    return net.reshape(net.select(net.blob(x), axis, chosen), node.y.shape)


def _embed(net: NetBuilder, table: np.ndarray, indices: Tensor, axis: int, shape: Shape) -> str:
    if table.ndim != 2 or axis != 0:
        refuse(f"got axis {axis} of a constant {table.shape}, expected rows of a matrix (Embed)")
    fields = {"num_output": table.shape[1], "input_dim": table.shape[0], "bias_term": False}
    return net.add("Embed", [net.blob(indices)], shape, weights=[table], embed_param=fields)


def _reduction(operation: str, power: float = 1, sign: float = 1) -> Converter:
    """Return a converter of a reduction of multiples, MAX or one of Reduction, and a power."""

    def convert(node: Node, net: NetBuilder) -> Result:
        if node.y.is_integer and (operation == "MEAN" or power != 1):
            refuse("no layer rounds means and roots of integers")
        axes = _axes(node)
        x = net.blob(node.x)
        if not axes:  # noop_with_empty_axes: each value is reduced on its own
            if operation in {"SUM", "MEAN", "MAX"}:
                return x
            axes = [len(node.x.shape)]
            x = net.reshape(x, (*node.x.shape, 1))
        x = x if sign == 1 else net.power(x, scale=sign)
        found = net.reshape(_reduced(net, x, axes, operation), node.y.shape)
        return found if power == sign == 1 else net.power(found, power=power, scale=sign)

    return convert


def _reduced(net: NetBuilder, x: str, axes: Sequence[int], operation: str) -> str:
    """Add a reduction over axes, which are removed or have size 1."""
    shape = net.shapes[x]
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    image = len(shape) == 4 and list(axes) == [2, 3]
    if image and operation in {"MEAN", "MAX"}:
        pool = {"pool": "AVE" if operation == "MEAN" else "MAX", "global_pooling": True}
        return net.add("Pooling", [x], (*shape[:2], 1, 1), pooling_param=pool)
    if [*kept, *axes] != list(range(len(shape))):
        x = net.permute(x, [*kept, *axes])
    out = tuple(shape[axis] for axis in kept)
    if operation == "MAX":
        lead = out or (1,)
        x = net.reshape(x, (*lead, math.prod(shape[axis] for axis in axes)), new_first=not out)
        largest = {"axis": len(lead), "out_max_val": True}
        return net.add("ArgMax", [x], (*lead, 1), argmax_param=largest)
    fields = {"axis": len(out), "operation": operation}
    return net.add("Reduction", [x], out, reduction_param=fields)


def _axes(node: Node) -> list[int]:
    """Return the reduced axes, counted from the first."""
    given = node.attribute_or_input("axes", 1)
    if given is None or not given.size:
        if node.attributes.get("noop_with_empty_axes"):
            return []
        return list(range(len(node.x.shape)))
    return sorted(int(axis) % len(node.x.shape) for axis in given.reshape(-1))


def _argmax(node: Node, net: NetBuilder) -> Result:
    """Add ArgMax along an axis, of reversed values if ONNX selects the first of equal ones."""
    shape, axis = node.x.shape, node.axis(0)
    x, size = net.blob(node.x), shape[axis]
    kept = (*shape[:axis], 1, *shape[axis + 1 :])
    last = bool(node.attributes.get("select_last_index", 0))
    if not last:
        x = net.gather(x, axis, np.arange(size)[::-1])
    x = net.add("ArgMax", [x], kept, argmax_param={"axis": axis})
    if not last:
        x = net.power(x, scale=-1, shift=size - 1)
    return net.reshape(x, node.y.shape)


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
