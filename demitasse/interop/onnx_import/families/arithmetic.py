"""Sums, products and the largest of several values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.interop.onnx_import.converter import Converter
from demitasse.interop.onnx_import.draft import Draft
from demitasse.interop.onnx_import.source import Node, Tensor
from demitasse.interop.onnx_import.spread import add, add_constant, multiply, multiply_constant

__all__ = ["CONVERTERS"]


def addition(node: Node, net: Draft) -> None:
    """Add Eltwise, Bias or Power."""
    x, other = _constant_last(node)
    if other.array is None:
        add(net, net.blob(x), net.blob(other), node.y.shape, to=node.y)
    else:
        add_constant(net, net.blob(x), other.array, node.y.shape, to=node.y)


def subtraction(node: Node, net: Draft) -> None:
    """Add a sum with the opposite."""
    x, other, shape = node.x, node.need(1), node.y.shape
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


def product(node: Node, net: Draft) -> None:
    """Add Eltwise, Scale or Power."""
    x, other = _constant_last(node)
    if other.array is not None:
        multiply_constant(net, net.blob(x), other.array, node.y.shape, to=node.y)
    elif x.name == other.name:
        net.power(net.blob(x), power=2, to=node.y)
    else:
        multiply(net, net.blob(x), net.blob(other), node.y.shape, to=node.y)


def quotient(node: Node, net: Draft) -> None:
    """Add a product with the inverse.

    Raises:
        NetError: It is of whole numbers, which are rounded.
    """
    x, other, shape = node.x, node.need(1), node.y.shape
    if node.y.whole:
        message = "a quotient of whole numbers is rounded, which no layer does"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    if other.array is not None:
        with np.errstate(all="ignore"):
            inverse = 1 / _as_float(other.array)
        if not np.all(np.isfinite(inverse)):
            message = "it divides by a constant 0"
            raise NetError(message, code=ErrorCode.UNSUPPORTED)
        multiply_constant(net, net.blob(x), inverse, shape, to=node.y)
        return
    inverse_blob = net.power(net.blob(other), power=-1)
    if x.array is not None:
        multiply_constant(net, inverse_blob, x.array, shape, to=node.y)
    else:
        multiply(net, net.blob(x), inverse_blob, shape, to=node.y)


def power(node: Node, net: Draft) -> None:
    """Add Power, or Exp to a constant base.

    Raises:
        NetError: It is of two blobs, or of several exponents.
    """
    x, other = node.x, node.need(1)
    if node.y.whole:
        message = "a power of whole numbers is rounded, which no layer does"
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
        message = "Power takes one constant exponent, and Exp one base above 0"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)


def total(node: Node, net: Draft) -> None:
    """Add an Eltwise of all, or nothing for one."""
    _several(net, "SUM", _given(node), node)


def mean(node: Node, net: Draft) -> None:
    """Add an Eltwise with equal factors."""
    given = _given(node)
    _several(net, "SUM", given, node, [1 / len(given)] * len(given))


def largest(node: Node, net: Draft) -> None:
    """Add an Eltwise of the largest."""
    _several(net, "MAX", _given(node), node)


def smallest(node: Node, net: Draft) -> None:
    """Add the opposite of the largest of the opposites."""
    blobs = [net.expand(net.power(net.blob(one), scale=-1), node.y.shape) for one in _given(node)]
    if len(blobs) > 1:
        net.power(net.eltwise("MAX", blobs), scale=-1, to=node.y)
    else:
        net.same(node.y, net.blob(node.x))


def _several(
    net: Draft,
    operation: str,
    given: Sequence[Tensor],
    node: Node,
    factors: Sequence[float] = (),
) -> None:
    blobs = [net.expand(net.blob(one), node.y.shape) for one in given]
    if len(blobs) == 1:
        net.same(node.y, blobs[0])
    else:
        net.eltwise(operation, blobs, factors=factors, to=node.y)


def _given(node: Node) -> list[Tensor]:
    return [one for one in node.inputs if one is not None]


def _constant_last(node: Node) -> tuple[Tensor, Tensor]:
    """Return two operands whose order does not matter."""
    x, other = node.x, node.need(1)
    return (other, x) if x.array is not None else (x, other)


def _as_float(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


CONVERTERS: Mapping[str, Converter] = {
    "Add": addition,
    "Div": quotient,
    "Max": largest,
    "Mean": mean,
    "Min": smallest,
    "Mul": product,
    "Pow": power,
    "Sub": subtraction,
    "Sum": total,
}
