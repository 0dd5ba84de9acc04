"""Converters of elementwise operators."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from demitasse.interop.onnx_import.converters.arithmetic import LARGEST, multiply
from demitasse.interop.onnx_import.model import Node, refuse
from demitasse.interop.onnx_import.net_builder import Converter, NetBuilder, Result

BROADCAST = 7
"""First opset whose operands are aligned at the last axis."""

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _plain(kind: str) -> Converter:
    """Return a converter to a layer without fields."""
    return lambda node, net: net.same(kind, net.blob(node.x))


def _with_alpha(node: Node, net: NetBuilder, kind: str, field: str, default: float) -> str:
    """Add a layer with one field, the attribute ``alpha``."""
    alpha = {field: node.attributes.get("alpha", default)}
    fields: dict[str, Any] = {f"{kind.lower()}_param": alpha}
    return net.add(kind, [net.blob(node.x)], node.y.shape, **fields)


def _power(power: float = 1, scale: float = 1) -> Converter:
    """Return a converter to a Power layer."""
    return lambda node, net: net.power(net.blob(node.x), power=power, scale=scale)


def _prelu(node: Node, net: NetBuilder) -> Result:
    """Add PReLU; for slopes that are neither per channel nor shared, add two ReLUs."""
    slopes, shape = node.array(1, "slope"), node.x.shape
    if node.opset < BROADCAST and slopes.ndim == 1:  # one slope per channel
        slopes = slopes.reshape(-1, *(1,) * (len(shape) - 2))
    x, full = net.blob(node.x), (*(1,) * (len(shape) - slopes.ndim), *slopes.shape)
    if slopes.size == 1 and len(shape) > 1:
        how = {"channel_shared": True}
        return net.add("PReLU", [x], shape, weights=[slopes.reshape(())], prelu_param=how)
    if len(shape) > 1 and full == (1, shape[1], *(1,) * (len(shape) - 2)):
        return net.add("PReLU", [x], shape, weights=[slopes.reshape(-1)])
    below = net.add("ReLU", [net.power(x, scale=-1)], shape)
    scaled = multiply(net, below, -slopes, shape)
    return net.eltwise("SUM", [net.same("ReLU", x), scaled])


def _clip(node: Node, net: NetBuilder) -> Result:
    """Add Clip, ReLU or ReLU6."""
    low, high = (
        default if found is None else float(found.reshape(()))
        for found, default in (
            (node.attribute_or_input("min", 1), -LARGEST),
            (node.attribute_or_input("max", 2), LARGEST),
        )
    )
    x = net.blob(node.x)
    if (low, high) == (0, 6):
        return net.same("ReLU6", x)
    if low == 0 and high >= LARGEST:
        return net.same("ReLU", x)
    return _add_clip(net, x, min(low, high), high)  # in ONNX the upper limit has priority


def _add_clip(net: NetBuilder, x: str, low: float, high: float) -> str:
    limits = {"min": max(low, -LARGEST), "max": min(high, LARGEST)}
    return net.add("Clip", [x], net.shapes[x], clip_param=limits)


def _hard_sigmoid(node: Node, net: NetBuilder) -> Result:
    """Add Power and Clip."""
    scale, shift = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    return _add_clip(net, net.power(net.blob(node.x), scale=scale, shift=shift), 0, 1)


def _gated(node: Node, net: NetBuilder, gate: Callable[[str], str]) -> Result:
    """Add the product of the input with a function of the input."""
    x = net.blob(node.x)
    return net.eltwise("PROD", [x, gate(x)])


def _gelu(node: Node, net: NetBuilder) -> Result:
    if node.attributes.get("approximate", b"none") != b"none":
        refuse("the GELU layer has no tanh approximation")
    return net.same("GELU", net.blob(node.x))


def _greater(node: Node, net: NetBuilder) -> Result:
    """Add Threshold, of a difference unless the limit is a constant scalar."""
    other, shape = node.input(1), node.y.shape
    x, limit = net.expand(net.blob(node.x), shape), 0.0
    if other.array is not None and other.array.size == 1:
        limit = float(other.array.reshape(()))
    else:
        x = net.eltwise("SUM", [x, net.expand(net.blob(other), shape)], [1, -1])
    return net.add("Threshold", [x], shape, threshold_param={"threshold": limit})


def _dropout(node: Node, net: NetBuilder) -> Result:
    """Record an alias, as dropout is the identity in phase TEST."""
    node.refuse_outputs(1)
    training = node.optional_input(2)
    if training is not None and bool(node.array(2, "training_mode")):
        refuse("training_mode draws new random numbers in each run")
    return net.blob(node.x)


def _cast(node: Node, net: NetBuilder) -> Result:
    """Record an alias if the conversion changes no value."""
    have, want = node.x.dtype, node.y.dtype
    wide = want in {"float32", "int32", "int64"} or np.can_cast(have, want)
    if not (wide if node.x.is_integer else not node.y.is_integer) or (
        have != want and want in {"bfloat16", "bool"}
    ):
        refuse(f"no layer converts {have} to {want}")
    return net.blob(node.x)


CONVERTERS: Mapping[str, Converter] = {
    "Abs": _plain("AbsVal"),
    "Cast": _cast,
    "Clip": _clip,
    "Dropout": _dropout,
    "Elu": lambda node, net: _with_alpha(node, net, "ELU", "alpha", 1.0),
    "Exp": _plain("Exp"),
    "Gelu": _gelu,
    "Greater": _greater,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain("HardSwish"),
    "Identity": lambda node, net: net.blob(node.x),
    "LeakyRelu": lambda node, net: _with_alpha(node, net, "ReLU", "negative_slope", 0.01),
    "Log": _plain("Log"),
    "Mish": lambda node, net: _gated(node, net, lambda x: net.same("TanH", net.same("BNLL", x))),
    "Neg": _power(scale=-1),
    "PRelu": _prelu,
    "Reciprocal": _power(-1),
    "Relu": _plain("ReLU"),
    "Selu": lambda node, net: net.power(
        _with_alpha(node, net, "ELU", "alpha", SELU_ALPHA),
        scale=node.attributes.get("gamma", SELU_GAMMA),
    ),
    "Sigmoid": _plain("Sigmoid"),
    "Softplus": _plain("BNLL"),
    "Softsign": lambda node, net: _gated(
        node, net, lambda x: net.power(net.same("AbsVal", x), power=-1, shift=1)
    ),
    "Sqrt": _power(0.5),
    "Swish": lambda node, net: _with_alpha(node, net, "Swish", "beta", 1.0),
    "Tanh": _plain("TanH"),
}
