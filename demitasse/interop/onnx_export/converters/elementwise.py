"""Converters of elementwise layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from demitasse.interop.export.layer_facts import constant_power
from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.onnx_export.graph import Array, Converter, GraphBuilder
from demitasse.layers.activations import Rectifier
from demitasse.layers.dropout import Dropout
from demitasse.layers.exp_log_power import Exp, Log, Power


def _applied(
    node: LayerNode, graph: GraphBuilder, operator: str, *constants: float, **attributes: Any
) -> None:
    """Add an operator of the bottom and of constants."""
    graph.add(operator, node.bottoms[0], *constants, to=node.tops[0], **attributes)


def _relu(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Relu, or LeakyRelu with ``negative_slope``; for ReLU6 also an upper limit."""
    layer = node.layer_as(Rectifier)
    if layer.limited and layer.slope:
        inner = graph.add("LeakyRelu", node.bottoms[0], alpha=layer.slope)
        graph.add("Min", inner, 6, to=node.tops[0])
    elif layer.limited:
        _applied(node, graph, "Clip", 0, 6)
    elif layer.slope:
        _applied(node, graph, "LeakyRelu", alpha=layer.slope)
    else:
        _applied(node, graph, "Relu")


def _hard_swish(node: LayerNode, graph: GraphBuilder) -> None:
    """Add the product of the input and HardSigmoid; HardSwish is newer than some opsets."""
    [x], [y] = node.bottoms, node.tops
    graph.add("Mul", x, graph.add("HardSigmoid", x, alpha=1 / 6, beta=0.5), to=y)


def _exp(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Exp of a multiple."""
    layer, [x] = node.layer_as(Exp), node.bottoms
    _scaled(node, graph, "Exp", _linear(graph, x, layer.inner, 0), layer.outer)


def _log(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Log of a linear function."""
    layer, [x] = node.layer_as(Log), node.bottoms
    _scaled(node, graph, "Log", _linear(graph, x, layer.scale, layer.shift), layer.outer)


def _scaled(
    node: LayerNode, graph: GraphBuilder, operator: str, x: Array | Value, factor: float
) -> None:
    """Add a multiple of an operator's result."""
    if factor == 1:
        graph.add(operator, x, to=node.tops[0])
    else:
        graph.add("Mul", graph.add(operator, x), factor, to=node.tops[0])


def _power(node: LayerNode, graph: GraphBuilder) -> None:
    """Add scale, shift and power, without identities."""
    layer, [x], [top] = node.layer_as(Power), node.bottoms, node.tops
    if layer.slope == 0:
        value = graph.tensor(constant_power(layer))
        graph.add("ConstantOfShape", graph.add("Shape", x), to=top, value=value)
        return
    if layer.power == 1:
        _linear(graph, x, layer.scale, layer.shift, to=top)
        return
    inner = _linear(graph, x, layer.scale, layer.shift)
    if layer.power == 0.5:
        graph.add("Sqrt", inner, to=top)
    elif layer.power == 2:
        graph.add("Mul", inner, inner, to=top)
    else:
        graph.add("Pow", inner, layer.power, to=top)


def _linear(
    graph: GraphBuilder, x: Value, scale: float, shift: float, to: Value | None = None
) -> Array | Value:
    """Add scale * x + shift."""
    found: Array | Value = x
    if scale != 1:
        found = graph.add("Mul", x, scale, to=None if shift else to)
    if shift:
        return graph.add("Add", found, shift, to=to)
    return graph.add("Identity", x, to=to) if found is x and to is not None else found


def _prelu(node: LayerNode, graph: GraphBuilder) -> None:
    """Add PRelu, with slopes in a shape that broadcasts."""
    [x], blob = node.bottoms, node.layer.blobs[0]
    slopes = graph.param(blob, "slope", (blob.count, *(1,) * (len(x.shape) - 2)))
    graph.add("PRelu", x, slopes, to=node.tops[0])


def _swish(node: LayerNode, graph: GraphBuilder) -> None:
    """Add x * Sigmoid(beta x)."""
    [x], beta = node.bottoms, node.layer.param.swish_param.beta
    graph.add("Mul", x, graph.add("Sigmoid", _linear(graph, x, beta, 0)), to=node.tops[0])


def _gelu(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Gelu, or its formula before opset 20."""
    [x], [top] = node.bottoms, node.tops
    if graph.opset >= 20:
        graph.add("Gelu", x, to=top)
        return
    inner = graph.add("Erf", graph.add("Mul", x, math.sqrt(0.5)))
    half = graph.add("Mul", x, 0.5)
    graph.add("Mul", half, inner + 1, to=top)


CONVERTERS: Mapping[str, Converter] = {
    "AbsVal": partial(_applied, operator="Abs"),
    "BNLL": partial(_applied, operator="Softplus"),
    "Clip": lambda node, graph: _applied(
        node, graph, "Clip", node.layer.param.clip_param.min, node.layer.param.clip_param.max
    ),
    "Dropout": lambda node, graph: _applied(node, graph, "Mul", node.layer_as(Dropout).factor),
    "ELU": lambda node, graph: _applied(node, graph, "Elu", alpha=node.layer.param.elu_param.alpha),
    "Exp": _exp,
    "GELU": _gelu,
    "HardSwish": _hard_swish,
    "Log": _log,
    "PReLU": _prelu,
    "Power": _power,
    "ReLU": _relu,
    "ReLU6": _relu,
    "Sigmoid": partial(_applied, operator="Sigmoid"),
    "Swish": _swish,
    "TanH": partial(_applied, operator="Tanh"),
    "Threshold": lambda node, graph: graph.to_float(
        graph.add("Greater", node.bottoms[0], node.layer.param.threshold_param.threshold),
        to=node.tops[0],
    ),
}
