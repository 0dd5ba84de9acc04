"""Converters of elementwise layers."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from demitasse.interop.export.layer_graph import LayerNode, channel_shape, constant_power
from demitasse.interop.onnx_export.graph import Array, Converter, GraphBuilder, Result
from demitasse.layers.activations import Rectifier
from demitasse.layers.dropout import Dropout
from demitasse.layers.exp_log_power import Exp, Log, Power


def _applied(
    node: LayerNode, graph: GraphBuilder, operator: str, *constants: float, **attributes: Any
) -> Result:
    """Add an operator of the bottom and of constants."""
    return graph.add(operator, node.bottoms[0], *constants, **attributes)


def _relu(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add Relu, or LeakyRelu with ``negative_slope``; for ReLU6 also an upper limit."""
    layer = node.layer_as(Rectifier)
    if layer.limited and layer.slope:
        return graph.add("Min", graph.add("LeakyRelu", node.bottoms[0], alpha=layer.slope), 6)
    if layer.limited:
        return _applied(node, graph, "Clip", 0, 6)
    if layer.slope:
        return _applied(node, graph, "LeakyRelu", alpha=layer.slope)
    return _applied(node, graph, "Relu")


def _exp(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add a multiple of Exp of a multiple."""
    layer = node.layer_as(Exp)
    y = graph.add("Exp", _linear(graph.array(node.bottoms[0]), layer.inner))
    return _linear(y, layer.outer)


def _log(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add a multiple of Log of a linear function."""
    layer = node.layer_as(Log)
    y = graph.add("Log", _linear(graph.array(node.bottoms[0]), layer.scale, layer.shift))
    return _linear(y, layer.outer)


def _power(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add scale, shift and power, without identities."""
    layer, [x] = node.layer_as(Power), node.bottoms
    if layer.slope == 0:
        value = graph.tensor(constant_power(layer))
        return graph.add("ConstantOfShape", graph.add("Shape", x), value=value)
    inner = _linear(graph.array(x), layer.scale, layer.shift)
    if layer.power == 1:
        return inner
    if layer.power == 0.5:
        return graph.add("Sqrt", inner)
    return inner * inner if layer.power == 2 else graph.add("Pow", inner, layer.power)


def _linear(x: Array, scale: float, shift: float = 0) -> Array:
    """Add scale * x + shift, without identities."""
    scaled = x if scale == 1 else x * scale
    return scaled + shift if shift else scaled


def _prelu(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add PRelu, with slopes in a shape that broadcasts."""
    [x], blob = node.bottoms, node.layer.blobs[0]
    slopes = graph.param(blob, "slope", channel_shape(blob.count, x))
    return graph.add("PRelu", x, slopes)


def _swish(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add x * Sigmoid(beta x)."""
    x, beta = graph.array(node.bottoms[0]), node.layer.param.swish_param.beta
    return x * graph.add("Sigmoid", _linear(x, beta))


def _gelu(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add Gelu, or its formula before opset 20."""
    x = graph.array(node.bottoms[0])
    if graph.opset >= 20:
        return graph.add("Gelu", x)
    inner = graph.add("Erf", x * math.sqrt(0.5))
    return x * 0.5 * (inner + 1)


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
    # HardSwish is newer than some opsets
    "HardSwish": lambda node, graph: (
        graph.array(node.bottoms[0])
        * graph.add("HardSigmoid", node.bottoms[0], alpha=1 / 6, beta=0.5)
    ),
    "Log": _log,
    "PReLU": _prelu,
    "Power": _power,
    "ReLU": _relu,
    "ReLU6": _relu,
    "Sigmoid": partial(_applied, operator="Sigmoid"),
    "Swish": _swish,
    "TanH": partial(_applied, operator="Tanh"),
    "Threshold": lambda node, graph: graph.to_float(
        graph.add("Greater", node.bottoms[0], node.layer.param.threshold_param.threshold)
    ),
}
