"""Converters of sums, products, minima and maxima, with ONNX's broadcasting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from demitasse.interop.onnx_import.model import Node, Shape, Tensor, refuse
from demitasse.interop.onnx_import.net_builder import Converter, NetBuilder, as_float32

Operand = str | np.ndarray
"""A blob, or a constant."""


def _addition(node: Node, net: NetBuilder) -> None:
    """Add Eltwise, Bias or Power."""
    x, other = _constant_last(node)
    add(net, net.blob(x), _operand(net, other), node.y.shape, to=node.y)


def _subtraction(node: Node, net: NetBuilder) -> None:
    """Add a sum with the negative operand."""
    x, other, y = node.x, node.input(1), node.y
    if other.array is not None:
        add(net, net.blob(x), -other.array.astype(np.float64), y.shape, to=y)
    elif x.array is not None and x.array.size == 1:
        blob = net.expand(net.blob(other), y.shape)
        net.power(blob, scale=-1, shift=float(x.array.reshape(())), to=y)
    elif x.array is None and x.shape == other.shape:
        net.eltwise("SUM", [net.blob(x), net.blob(other)], factors=[1, -1], to=y)
    elif x.array is None:
        add(net, net.blob(x), net.power(net.blob(other), scale=-1), y.shape, to=y)
    else:
        add(net, net.power(net.blob(other), scale=-1), x.array, y.shape, to=y)


def _product(node: Node, net: NetBuilder) -> None:
    """Add Eltwise, Scale or Power."""
    x, other = _constant_last(node)
    if other.array is None and x.name == other.name:
        net.power(net.blob(x), power=2, to=node.y)
    else:
        multiply(net, net.blob(x), _operand(net, other), node.y.shape, to=node.y)


def _quotient(node: Node, net: NetBuilder) -> None:
    """Add a product with the reciprocal."""
    x, other, y = node.x, node.input(1), node.y
    if y.is_integer:
        refuse("no layer rounds quotients of integers")
    if other.array is not None:
        with np.errstate(all="ignore"):
            inverse = 1 / other.array.astype(np.float64)
        if not np.all(np.isfinite(inverse)):
            refuse("the divisor is a constant 0")
        multiply(net, net.blob(x), inverse, y.shape, to=y)
        return
    blob = net.power(net.blob(other), power=-1)
    if x.array is not None:
        multiply(net, blob, x.array, y.shape, to=y)
    else:
        multiply(net, net.blob(x), blob, y.shape, to=y)


def _power(node: Node, net: NetBuilder) -> None:
    """Add Power, or Exp for a constant base."""
    x, other, y = node.x, node.input(1), node.y
    if y.is_integer:
        refuse("no layer rounds powers of integers")
    if other.array is not None and other.array.size == 1:
        blob = net.expand(net.blob(x), y.shape)
        net.power(blob, power=float(other.array.reshape(())), to=y)
    elif x.array is not None and x.array.size == 1 and float(x.array.reshape(())) > 0:
        base = float(x.array.reshape(()))
        blob = net.expand(net.blob(other), y.shape)
        fields = {} if math.isclose(base, math.e, rel_tol=1e-7) else {"base": base}
        net.add("Exp", [blob], y.shape, to=y, exp_param=fields)
    else:
        refuse("expected one constant exponent (Power), or one constant base above 0 (Exp)")


def _eltwise(operation: str) -> Converter:
    """Return a converter to an Eltwise: SUM, MEAN, MAX or MIN."""

    def convert(node: Node, net: NetBuilder) -> None:
        given, y = [one for one in node.inputs if one is not None], node.y
        if len(given) > 1 and operation == "MIN":  # the negative maximum of the negative operands
            opposite = [net.expand(net.power(net.blob(one), scale=-1), y.shape) for one in given]
            net.power(net.eltwise("MAX", opposite), scale=-1, to=y)
            return
        blobs = [net.expand(net.blob(one), y.shape) for one in given]
        if len(blobs) == 1:
            net.alias(y, blobs[0])
        elif operation == "MEAN":
            net.eltwise("SUM", blobs, factors=[1 / len(blobs)] * len(blobs), to=y)
        else:
            net.eltwise(operation, blobs, to=y)

    return convert


def _operand(net: NetBuilder, value: Tensor) -> Operand:
    return net.blob(value) if value.array is None else value.array


def _constant_last(node: Node) -> tuple[Tensor, Tensor]:
    """Return two commutative operands, a constant one last."""
    x, other = node.x, node.input(1)
    return (other, x) if x.array is not None else (x, other)


CONVERTERS: Mapping[str, Converter] = {
    "Add": _addition,
    "Div": _quotient,
    "Max": _eltwise("MAX"),
    "Mean": _eltwise("MEAN"),
    "Min": _eltwise("MIN"),
    "Mul": _product,
    "Pow": _power,
    "Sub": _subtraction,
    "Sum": _eltwise("SUM"),
}


# -- broadcasting ------------------------------------------------------------------------------


def add(net: NetBuilder, x: str, other: Operand, shape: Shape, *, to: Tensor | None = None) -> str:
    """Add a sum: a Power for a constant number, an Eltwise, or a Bias with a broadcast operand."""
    return _combined(net, "Bias", x, other, shape, to)


def multiply(
    net: NetBuilder, x: str, other: Operand, shape: Shape, *, to: Tensor | None = None
) -> str:
    """Add a product: a Power for a constant number, an Eltwise, or a Scale; see ``add``."""
    return _combined(net, "Scale", x, other, shape, to)


def _combined(
    net: NetBuilder, kind: str, x: str, other: Operand, shape: Shape, to: Tensor | None
) -> str:
    field, fields = f"{kind.lower()}_param", dict[str, Any]()
    if isinstance(other, np.ndarray):
        x = net.expand(x, shape)
        if other.size == 1:
            number = {"shift" if kind == "Bias" else "scale": float(other.reshape(()))}
            return net.power(x, to=to, **number)
        axis, block = _block(other.shape, shape, keep_batch=False)
        inside = shape[axis : axis + len(block)]
        weight = np.broadcast_to(as_float32(other).reshape(block), inside)
        fields[field] = {"axis": axis, "num_axes": len(inside)}
        return net.add(kind, [x], shape, to=to, weights=[weight], **fields)
    operation = "SUM" if kind == "Bias" else "PROD"
    if net.shapes[x] != shape:
        x, other = other, x
    x = net.expand(x, shape)
    have = net.shapes[other]
    if have == shape:
        return net.eltwise(operation, [x, other], to=to)
    axis, block = _block(have, shape, keep_batch=True)
    inside = shape[axis : axis + len(block)]
    other = net.expand(net.reshape(other, block), inside)
    if inside == shape:
        return net.eltwise(operation, [x, other], to=to)
    fields[field] = {"axis": axis}
    return net.add(kind, [x, other], shape, to=to, **fields)


def _block(have: Shape, shape: Shape, *, keep_batch: bool) -> tuple[int, Shape]:
    """Return the first axis that an operand covers, and its sizes from there: not 1 at both ends.

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
    return first, full[first : last + 1]
