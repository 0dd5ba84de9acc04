"""Operators that compute every element by itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.interop.onnx_import.converter import Converter
from demitasse.interop.onnx_import.draft import Draft
from demitasse.interop.onnx_import.source import Node
from demitasse.interop.onnx_import.spread import multiply_constant

__all__ = ["CONVERTERS"]

LARGEST = float(np.finfo(np.float32).max)
SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _plain(kind: str) -> Converter:
    """Return the converter of an operator that is a layer."""

    def convert(node: Node, net: Draft) -> None:
        net.add(kind, [net.blob(node.x)], node.y.shape, to=node.y)

    return convert


def _power(power: float = 1, scale: float = 1) -> Converter:
    """Return the converter of an operator that is a Power."""

    def convert(node: Node, net: Draft) -> None:
        net.power(net.blob(node.x), power=power, scale=scale, to=node.y)

    return convert


def leaky_relu(node: Node, net: Draft) -> None:
    """Add ReLU with a slope."""
    slope = node.attributes.get("alpha", 0.01)
    net.add("ReLU", [net.blob(node.x)], node.y.shape, to=node.y,
            relu_param={"negative_slope": slope})  # fmt: skip


def prelu(node: Node, net: Draft) -> None:
    """Add PReLU; where slopes are not one for each channel or one for all, two ReLUs."""
    slopes, shape = node.array(1, "slope"), node.x.shape
    x, full = net.blob(node.x), (*(1,) * (len(shape) - slopes.ndim), *slopes.shape)
    if slopes.size == 1 and len(shape) > 1:
        net.add("PReLU", [x], shape, to=node.y, weights=[slopes.reshape(())],
                prelu_param={"channel_shared": True})  # fmt: skip
    elif len(shape) > 1 and full == (1, shape[1], *(1,) * (len(shape) - 2)):
        net.add("PReLU", [x], shape, to=node.y, weights=[slopes.reshape(-1)])
    else:
        below = net.add("ReLU", [net.power(x, scale=-1)], shape)
        scaled = multiply_constant(net, below, -slopes, shape)
        net.eltwise("SUM", [net.add("ReLU", [x], shape), scaled], to=node.y)


def elu(node: Node, net: Draft) -> None:
    """Add ELU."""
    alpha = node.attributes.get("alpha", 1.0)
    net.add("ELU", [net.blob(node.x)], node.y.shape, to=node.y, elu_param={"alpha": alpha})


def selu(node: Node, net: Draft) -> None:
    """Add ELU and its factor."""
    alpha = node.attributes.get("alpha", SELU_ALPHA)
    inner = net.add("ELU", [net.blob(node.x)], node.y.shape, elu_param={"alpha": alpha})
    net.power(inner, scale=node.attributes.get("gamma", SELU_GAMMA), to=node.y)


def clip(node: Node, net: Draft) -> None:
    """Add Clip, or what it is: ReLU or ReLU6."""
    low, high = (
        default if found is None else float(found.reshape(()))
        for found, default in ((node.given("min", 1), -LARGEST), (node.given("max", 2), LARGEST))
    )
    x, y = net.blob(node.x), node.y
    if (low, high) == (0, 6):
        net.add("ReLU6", [x], y.shape, to=y)
    elif low == 0 and high >= LARGEST:
        net.add("ReLU", [x], y.shape, to=y)
    else:
        _clip(net, x, min(low, high), high, node)  # ONNX lets the upper limit win


def _clip(net: Draft, x: str, low: float, high: float, node: Node | None = None) -> str:
    limits = {"min": max(low, -LARGEST), "max": min(high, LARGEST)}
    return net.add("Clip", [x], net.shapes[x], to=node.y if node else None, clip_param=limits)


def hard_sigmoid(node: Node, net: Draft) -> None:
    """Add Power and Clip."""
    scale, shift = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    _clip(net, net.power(net.blob(node.x), scale=scale, shift=shift), 0, 1, node)


def hard_swish(node: Node, net: Draft) -> None:
    """Add a product with a Power that is clipped."""
    x = net.blob(node.x)
    gate = _clip(net, net.power(x, scale=1 / 6, shift=0.5), 0, 1)
    net.eltwise("PROD", [x, gate], to=node.y)


def swish(node: Node, net: Draft) -> None:
    """Add Swish."""
    beta = node.attributes.get("alpha", 1.0)
    net.add("Swish", [net.blob(node.x)], node.y.shape, to=node.y, swish_param={"beta": beta})


def mish(node: Node, net: Draft) -> None:
    """Add a product with TanH of BNLL."""
    x = net.blob(node.x)
    inner = net.add("TanH", [net.add("BNLL", [x], node.y.shape)], node.y.shape)
    net.eltwise("PROD", [x, inner], to=node.y)


def softsign(node: Node, net: Draft) -> None:
    """Add a product with the inverse of 1 + AbsVal."""
    x = net.blob(node.x)
    inverse = net.power(net.add("AbsVal", [x], node.y.shape), power=-1, shift=1)
    net.eltwise("PROD", [x, inverse], to=node.y)


def gelu(node: Node, net: Draft) -> None:
    """Add GELU.

    Raises:
        NetError: It is the one with a hyperbolic tangent.
    """
    if node.attributes.get("approximate", b"none") != b"none":
        message = "its approximation by tanh is not what the GELU layer computes"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    net.add("GELU", [net.blob(node.x)], node.y.shape, to=node.y)


def greater(node: Node, net: Draft) -> None:
    """Add Threshold, of a difference unless the limit is one number."""
    other, shape = node.need(1), node.y.shape
    x, limit = net.expand(net.blob(node.x), shape), 0.0
    if other.array is not None and other.array.size == 1:
        limit = float(other.array.reshape(()))
    else:
        x = net.eltwise("SUM", [x, net.expand(net.blob(other), shape)], factors=[1, -1])
    net.add("Threshold", [x], shape, to=node.y, threshold_param={"threshold": limit})


def alias(node: Node, net: Draft) -> None:
    """Add nothing."""
    net.same(node.y, net.blob(node.x))


def dropout(node: Node, net: Draft) -> None:
    """Add nothing: it does nothing in tests.

    Raises:
        NetError: It draws in tests, too, or its mask is wanted.
    """
    node.need_no(1)
    training = node.get(2)
    if training is not None and bool(node.array(2, "training_mode")):
        message = "with training_mode it draws other random numbers in each run"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    alias(node, net)


def cast(node: Node, net: Draft) -> None:
    """Add nothing where no value changes.

    Raises:
        NetError: Values would be cut to whole numbers or to truth values.
    """
    have, want = node.x.dtype, node.y.dtype
    wide = want in {"int32", "int64"} or np.can_cast(have, want)
    if not (wide if node.x.whole else not node.y.whole) or (
        have != want and want in {"bfloat16", "bool"}
    ):
        message = f"values of {have} become {want}, which no layer does"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    alias(node, net)


CONVERTERS: Mapping[str, Converter] = {
    "Abs": _plain("AbsVal"),
    "Cast": cast,
    "Clip": clip,
    "Dropout": dropout,
    "Elu": elu,
    "Exp": _plain("Exp"),
    "Gelu": gelu,
    "Greater": greater,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Identity": alias,
    "LeakyRelu": leaky_relu,
    "Log": _plain("Log"),
    "Mish": mish,
    "Neg": _power(scale=-1),
    "PRelu": prelu,
    "Reciprocal": _power(-1),
    "Relu": _plain("ReLU"),
    "Selu": selu,
    "Sigmoid": _plain("Sigmoid"),
    "Softplus": _plain("BNLL"),
    "Softsign": softsign,
    "Sqrt": _power(0.5),
    "Swish": swish,
    "Tanh": _plain("TanH"),
}
