"""Converters of sums, products, minima and maxima, with ONNX's broadcasting."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from demitasse.interop.onnx_import.model import Node, Shape, refuse
from demitasse.interop.onnx_import.net_builder import Converter, NetBuilder, Result, as_float32

LARGEST = float(np.finfo(np.float32).max)

Operand = str | np.ndarray
"""A blob, or a constant."""


def _subtraction(node: Node, net: NetBuilder) -> Result:
    """Add a sum with the negative operand."""
    x, other, y = node.x, node.input(1), node.y
    if other.array is not None:
        return add(net, net.blob(x), -other.array.astype(np.float64), y.shape)
    if x.array is not None and x.array.size == 1:
        blob = net.expand(net.blob(other), y.shape)
        return net.power(blob, scale=-1, shift=float(x.array.reshape(())))
    if x.array is None and x.shape == other.shape:
        return net.eltwise("SUM", [net.blob(x), net.blob(other)], factors=[1, -1])
    if x.array is None:
        return add(net, net.blob(x), net.power(net.blob(other), scale=-1), y.shape)
    return add(net, net.power(net.blob(other), scale=-1), x.array, y.shape)


def _commutative(node: Node, net: NetBuilder) -> Result:
    """Add the layer of a sum or product, with a constant operand last."""
    x, other = node.x, node.input(1)
    if x.array is not None:
        x, other = other, x
    if node.op == "Mul" and other.array is None and x.name == other.name:
        return net.power(net.blob(x), power=2)
    combine, blob = multiply if node.op == "Mul" else add, net.blob(x)
    operand = net.blob(other) if other.array is None else other.array
    return combine(net, blob, operand, node.y.shape)


def _quotient(node: Node, net: NetBuilder) -> Result:
    """Add a product with the reciprocal."""
    x, other, y = node.x, node.input(1), node.y
    if y.is_integer:
        refuse("no layer rounds quotients of integers")
    if other.array is not None:
        with np.errstate(all="ignore"):
            inverse = 1 / other.array.astype(np.float64)
        if not np.all(np.isfinite(inverse)):
            refuse("the divisor is a constant 0")
        return multiply(net, net.blob(x), inverse, y.shape)
    blob = net.power(net.blob(other), power=-1)
    if x.array is not None:
        return multiply(net, blob, x.array, y.shape)
    return multiply(net, net.blob(x), blob, y.shape)


def _power(node: Node, net: NetBuilder) -> Result:
    """Add Power, or Exp for a constant base."""
    x, other, y = node.x, node.input(1), node.y
    if y.is_integer:
        refuse("no layer rounds powers of integers")
    if other.array is not None and other.array.size == 1:
        blob = net.expand(net.blob(x), y.shape)
        return net.power(blob, power=float(other.array.reshape(())))
    if x.array is None or x.array.size != 1 or float(x.array.reshape(())) <= 0:
        refuse("expected one constant exponent (Power), or one constant base above 0 (Exp)")
    base = float(x.array.reshape(()))
    blob = net.expand(net.blob(other), y.shape)
    fields = {} if math.isclose(base, math.e, rel_tol=1e-7) else {"base": base}
    return net.add("Exp", [blob], y.shape, exp_param=fields)


def _eltwise(operation: str) -> Converter:
    """Return a converter to an Eltwise: SUM, MEAN, MAX or MIN."""

    def convert(node: Node, net: NetBuilder) -> Result:
        given, shape = [one for one in node.inputs if one is not None], node.y.shape
        limits = [one.array for one in given if one.array is not None and one.array.size == 1]
        wide = [one for one in given if one.array is None and one.shape == shape]
        if operation in {"MAX", "MIN"} and len(given) == 2 and len(limits) == len(wide) == 1:
            field = "min" if operation == "MAX" else "max"
            clip = {"min": -LARGEST, "max": LARGEST, field: float(limits[0].reshape(()))}
            return net.add("Clip", [net.blob(wide[0])], shape, clip_param=clip)
        if len(given) > 1 and operation == "MIN":  # the negative maximum of the negative operands
            opposite = [net.expand(net.power(net.blob(one), scale=-1), shape) for one in given]
            return net.power(net.eltwise("MAX", opposite), scale=-1)
        blobs = [net.expand(net.blob(one), shape) for one in given]
        if len(blobs) == 1:
            return blobs[0]
        if operation == "MEAN":
            return net.eltwise("SUM", blobs, [1 / len(blobs)] * len(blobs))
        return net.eltwise(operation, blobs)

    return convert


CONVERTERS: Mapping[str, Converter] = {
    "Add": _commutative,
    "Div": _quotient,
    "Max": _eltwise("MAX"),
    "Mean": _eltwise("MEAN"),
    "Min": _eltwise("MIN"),
    "Mul": _commutative,
    "Pow": _power,
    "Sub": _subtraction,
    "Sum": _eltwise("SUM"),
}


# -- broadcasting ------------------------------------------------------------------------------


def add(net: NetBuilder, x: str, other: Operand, shape: Shape, kind: str = "Bias") -> str:
    """Add a sum, or with Scale a product, with a broadcast operand.

    The layer is a Power for a constant number, an Eltwise for equal shapes, or of type ``kind``.
    """
    field, fields = f"{kind.lower()}_param", dict[str, Any]()
    if not isinstance(other, str):
        x, other = net.expand(x, shape), np.asarray(other)  # numpy's results may be scalars
        if other.size == 1:
            number = {"shift" if kind == "Bias" else "scale": float(other.reshape(()))}
            return net.power(x, **number)
        axis, block = _block(other.shape, shape, keep_batch=False)
        inside = shape[axis : axis + len(block)]
        weight = np.broadcast_to(as_float32(other).reshape(block), inside)
        fields[field] = {"axis": axis, "num_axes": len(inside)}
        return net.add(kind, [x], shape, weights=[weight], **fields)
    operation = "SUM" if kind == "Bias" else "PROD"
    if net.shapes[x] != shape:
        x, other = other, x
    x = net.expand(x, shape)
    have = net.shapes[other]
    if have == shape:
        return net.eltwise(operation, [x, other])
    axis, block = _block(have, shape, keep_batch=True)
    inside = shape[axis : axis + len(block)]
    other = net.expand(net.reshape(other, block), inside)
    if inside == shape:
        return net.eltwise(operation, [x, other])
    fields[field] = {"axis": axis}
    return net.add(kind, [x, other], shape, **fields)


multiply = partial(add, kind="Scale")


def _block(have: Shape, shape: Shape, *, keep_batch: bool) -> tuple[int, Shape]:
    """Return the first axis that an operand covers, and its sizes from there: not 1 at both ends.

    With ``keep_batch``, a first axis that both shapes share is included, as the batch can change.
    """
    full = (*(1,) * (len(shape) - len(have)), *have)
    axes = [axis for axis, size in enumerate(full) if size != 1]
    first, last = (axes[0], axes[-1]) if axes else (0, 0)
    if keep_batch and len(have) == len(shape) and have[0] == shape[0]:
        first = 0
    return first, full[first : last + 1]
