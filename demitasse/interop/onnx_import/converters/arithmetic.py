"""Converters of sums, products, minima and maxima, with ONNX's broadcasting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.interop.onnx_import.model import Node, Shape, Tensor
from demitasse.interop.onnx_import.net_builder import Converter, NetBuilder, as_float32


def _addition(node: Node, net: NetBuilder) -> None:
    """Add Eltwise, Bias or Power."""
    x, other = _constant_last(node)
    if other.array is None:
        add(net, net.blob(x), net.blob(other), node.y.shape, to=node.y)
    else:
        add_constant(net, net.blob(x), other.array, node.y.shape, to=node.y)


def _subtraction(node: Node, net: NetBuilder) -> None:
    """Add a sum with the negative operand."""
    x, other, shape = node.x, node.input(1), node.y.shape
    if other.array is not None:
        add_constant(net, net.blob(x), -_as_float(other.array), shape, to=node.y)
    elif x.array is not None and x.array.size == 1:
        blob = net.expand(net.blob(other), shape)
        net.power(blob, scale=-1, shift=float(x.array.reshape(())), to=node.y)
    elif x.array is not None:
        opposite = net.power(net.blob(other), scale=-1)
        add_constant(net, opposite, x.array, shape, to=node.y)
    elif x.shape == other.shape:
        net.eltwise("SUM", [net.blob(x), net.blob(other)], factors=[1, -1], to=node.y)
    else:
        add(net, net.blob(x), net.power(net.blob(other), scale=-1), shape, to=node.y)


def _product(node: Node, net: NetBuilder) -> None:
    """Add Eltwise, Scale or Power."""
    x, other = _constant_last(node)
    if other.array is not None:
        multiply_constant(net, net.blob(x), other.array, node.y.shape, to=node.y)
    elif x.name == other.name:
        net.power(net.blob(x), power=2, to=node.y)
    else:
        _multiply(net, net.blob(x), net.blob(other), node.y.shape, to=node.y)


def _quotient(node: Node, net: NetBuilder) -> None:
    """Add a product with the reciprocal."""
    x, other, shape = node.x, node.input(1), node.y.shape
    if node.y.is_integer:
        message = "no layer rounds quotients of integers"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    if other.array is not None:
        with np.errstate(all="ignore"):
            inverse = 1 / _as_float(other.array)
        if not np.all(np.isfinite(inverse)):
            message = "the divisor is a constant 0"
            raise NetError(message, code=ErrorCode.UNSUPPORTED)
        multiply_constant(net, net.blob(x), inverse, shape, to=node.y)
        return
    inverse_blob = net.power(net.blob(other), power=-1)
    if x.array is not None:
        multiply_constant(net, inverse_blob, x.array, shape, to=node.y)
    else:
        _multiply(net, net.blob(x), inverse_blob, shape, to=node.y)


def _power(node: Node, net: NetBuilder) -> None:
    """Add Power, or Exp for a constant base."""
    x, other = node.x, node.input(1)
    if node.y.is_integer:
        message = "no layer rounds powers of integers"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    if other.array is not None and other.array.size == 1:
        blob = net.expand(net.blob(x), node.y.shape)
        net.power(blob, power=float(other.array.reshape(())), to=node.y)
    elif x.array is not None and x.array.size == 1 and float(x.array.reshape(())) > 0:
        base = float(x.array.reshape(()))
        blob = net.expand(net.blob(other), node.y.shape)
        fields = {} if math.isclose(base, math.e, rel_tol=1e-7) else {"base": base}
        net.add("Exp", [blob], node.y.shape, to=node.y, exp_param=fields)
    else:
        message = "expected one constant exponent (Power), or one constant base above 0 (Exp)"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)


def _total(node: Node, net: NetBuilder) -> None:
    """Add an Eltwise sum."""
    _add_eltwise(net, "SUM", _operands(node), node)


def _mean(node: Node, net: NetBuilder) -> None:
    """Add an Eltwise sum with equal factors."""
    given = _operands(node)
    _add_eltwise(net, "SUM", given, node, [1 / len(given)] * len(given))


def _largest(node: Node, net: NetBuilder) -> None:
    """Add an Eltwise maximum."""
    _add_eltwise(net, "MAX", _operands(node), node)


def _smallest(node: Node, net: NetBuilder) -> None:
    """Add the negative maximum of the negative operands."""
    blobs = [
        net.expand(net.power(net.blob(one), scale=-1), node.y.shape) for one in _operands(node)
    ]
    if len(blobs) > 1:
        net.power(net.eltwise("MAX", blobs), scale=-1, to=node.y)
    else:
        net.alias(node.y, net.blob(node.x))


def _add_eltwise(
    net: NetBuilder,
    operation: str,
    given: Sequence[Tensor],
    node: Node,
    factors: Sequence[float] = (),
) -> None:
    blobs = [net.expand(net.blob(one), node.y.shape) for one in given]
    if len(blobs) == 1:
        net.alias(node.y, blobs[0])
    else:
        net.eltwise(operation, blobs, factors=factors, to=node.y)


def _operands(node: Node) -> list[Tensor]:
    return [one for one in node.inputs if one is not None]


def _constant_last(node: Node) -> tuple[Tensor, Tensor]:
    """Return two commutative operands, a constant one last."""
    x, other = node.x, node.input(1)
    return (other, x) if x.array is not None else (x, other)


def _as_float(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


CONVERTERS: Mapping[str, Converter] = {
    "Add": _addition,
    "Div": _quotient,
    "Max": _largest,
    "Mean": _mean,
    "Min": _smallest,
    "Mul": _product,
    "Pow": _power,
    "Sub": _subtraction,
    "Sum": _total,
}


# -- broadcasting ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Axes of a larger shape that a broadcast operand covers.

    Attributes:
        axis: The first axis.
        shape: Sizes of the operand from that axis.
    """

    axis: int
    shape: Shape


def add(net: NetBuilder, x: str, other: str, shape: Shape, *, to: Tensor | None = None) -> str:
    """Add the sum of two blobs: an Eltwise, or a Bias with a broadcast operand."""
    return _blobs(net, "Bias", x, other, shape, to)


def _multiply(
    net: NetBuilder, x: str, other: str, shape: Shape, *, to: Tensor | None = None
) -> str:
    """Add the product of two blobs: an Eltwise, or a Scale with a broadcast operand."""
    return _blobs(net, "Scale", x, other, shape, to)


def _blobs(net: NetBuilder, kind: str, x: str, other: str, shape: Shape, to: Tensor | None) -> str:
    if net.shapes[x] != shape:
        x, other = other, x
    x = net.expand(x, shape)
    have = net.shapes[other]
    if have == shape:
        return net.eltwise("SUM" if kind == "Bias" else "PROD", [x, other], to=to)
    block = _block(have, shape, keep_batch=True)
    inside = shape[block.axis : block.axis + len(block.shape)]
    other = net.expand(net.reshape(other, block.shape), inside)
    if inside == shape:
        return net.eltwise("SUM" if kind == "Bias" else "PROD", [x, other], to=to)
    fields: dict[str, Any] = {f"{kind.lower()}_param": {"axis": block.axis}}
    return net.add(kind, [x, other], shape, to=to, **fields)


def add_constant(
    net: NetBuilder, x: str, array: np.ndarray, shape: Shape, *, to: Tensor | None = None
) -> str:
    """Add the sum of a blob and a constant: a Power, or a Bias."""
    x = net.expand(x, shape)
    if array.size == 1:
        return net.power(x, shift=float(array.reshape(())), to=to)
    return _constant(net, "Bias", x, array, shape, to)


def multiply_constant(
    net: NetBuilder, x: str, array: np.ndarray, shape: Shape, *, to: Tensor | None = None
) -> str:
    """Add the product of a blob and a constant: a Power, or a Scale."""
    x = net.expand(x, shape)
    if array.size == 1:
        return net.power(x, scale=float(array.reshape(())), to=to)
    return _constant(net, "Scale", x, array, shape, to)


def _constant(
    net: NetBuilder, kind: str, x: str, array: np.ndarray, shape: Shape, to: Tensor | None
) -> str:
    block = _block(array.shape, shape, keep_batch=False)
    inside = shape[block.axis : block.axis + len(block.shape)]
    weight = np.broadcast_to(as_float32(array).reshape(block.shape), inside)
    fields: dict[str, Any] = {
        f"{kind.lower()}_param": {"axis": block.axis, "num_axes": len(inside)}
    }
    return net.add(kind, [x], shape, to=to, weights=[weight], **fields)


def _block(have: Shape, shape: Shape, *, keep_batch: bool) -> Block:
    """Return the axes that an operand covers: from its first to its last size other than 1.

    Args:
        have: Shape of the operand.
        shape: Shape of the result.
        keep_batch: Include a first axis that both shapes share, as the batch can change.
    """
    full = (*(1,) * (len(shape) - len(have)), *have)
    axes = [axis for axis, size in enumerate(full) if size != 1]
    first, last = (axes[0], axes[-1]) if axes else (0, 0)
    if keep_batch and len(have) == len(shape) and have[0] == shape[0]:
        first = 0
    return Block(first, full[first : last + 1])
