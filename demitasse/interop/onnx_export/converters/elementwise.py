"""Converters of elementwise layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.onnx_export.graph import Converter, GraphBuilder
from demitasse.layers.activations import Rectifier
from demitasse.layers.dropout import Dropout
from demitasse.layers.exp_log_power import Exp, Log, Power


def _plain(operator: str) -> Converter:
    """Return a converter to an operator without attributes."""

    def convert(node: LayerNode, graph: GraphBuilder) -> None:
        graph.add(operator, node.bottoms[0], to=node.tops[0])

    return convert


def _relu(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Relu, or LeakyRelu with ``negative_slope``; Clip for ReLU6."""
    layer = node.layer_as(Rectifier)
    slope = layer.slope
    if layer.limited:
        _relu6(node, graph, slope)
    elif slope:
        graph.add("LeakyRelu", node.bottoms[0], to=node.tops[0], alpha=slope)
    else:
        graph.add("Relu", node.bottoms[0], to=node.tops[0])


def _relu6(node: LayerNode, graph: GraphBuilder, slope: float) -> None:
    """Add Clip, after LeakyRelu with a slope."""
    if slope:
        x: str | Value = graph.add("LeakyRelu", node.bottoms[0], alpha=slope)
        graph.add("Min", x, graph.scalar(6), to=node.tops[0])
    else:
        graph.add("Clip", node.bottoms[0], graph.scalar(0), graph.scalar(6), to=node.tops[0])


def _hard_swish(node: LayerNode, graph: GraphBuilder) -> None:
    """Add the product of the input and HardSigmoid; HardSwish is newer than some opsets."""
    [x], [y] = node.bottoms, node.tops
    graph.add("Mul", x, graph.add("HardSigmoid", x, alpha=1 / 6, beta=0.5), to=y)


def _elu(node: LayerNode, graph: GraphBuilder) -> None:
    graph.add("Elu", node.bottoms[0], to=node.tops[0], alpha=node.layer.param.elu_param.alpha)


def _clip(node: LayerNode, graph: GraphBuilder) -> None:
    p = node.layer.param.clip_param
    limits = graph.scalar(p.min), graph.scalar(p.max)
    graph.add("Clip", node.bottoms[0], *limits, to=node.tops[0])


def _dropout(node: LayerNode, graph: GraphBuilder) -> None:
    """Add the factor of a Dropout with ``scale_train: false``."""
    factor = node.layer_as(Dropout).factor
    graph.add("Mul", node.bottoms[0], graph.scalar(factor), to=node.tops[0])


def _exp(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Exp of a multiple."""
    layer, x = node.layer_as(Exp), node.bottoms[0].name
    if layer.inner != 1:
        x = graph.add("Mul", x, graph.scalar(layer.inner))
    if layer.outer == 1:
        graph.add("Exp", x, to=node.tops[0])
    else:
        y = graph.add("Exp", x)
        graph.add("Mul", y, graph.scalar(layer.outer), to=node.tops[0])


def _log(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Log of a linear function."""
    layer = node.layer_as(Log)
    x = _linear(graph, node.bottoms[0], layer.scale, layer.shift)
    if layer.outer == 1:
        graph.add("Log", x, to=node.tops[0])
    else:
        y = graph.add("Log", x)
        graph.add("Mul", y, graph.scalar(layer.outer), to=node.tops[0])


def _power(node: LayerNode, graph: GraphBuilder) -> None:
    """Add scale, shift and power, without identities."""
    layer, [x], [top] = node.layer_as(Power), node.bottoms, node.tops
    if layer.slope == 0:  # a constant
        value = math.pow(layer.shift, layer.power) if layer.shift or layer.power >= 0 else math.inf
        shape = graph.add("Shape", x)
        constant = graph.tensor([value])
        graph.add("ConstantOfShape", shape, to=top, value=constant)
    elif layer.power == 1:
        _linear(graph, x, layer.scale, layer.shift, to=top)
    elif layer.power == 0.5:
        graph.add("Sqrt", _linear(graph, x, layer.scale, layer.shift), to=top)
    else:
        inner = _linear(graph, x, layer.scale, layer.shift)
        if layer.power == 2:
            graph.add("Mul", inner, inner, to=top)
        else:
            graph.add("Pow", inner, graph.scalar(layer.power), to=top)


def _linear(
    graph: GraphBuilder, x: str | Value, scale: float, shift: float, to: Value | None = None
) -> str:
    """Add scale * x + shift."""
    if shift == 0 and scale == 1:
        name = x.name if isinstance(x, Value) else x
        return name if to is None else graph.add("Identity", name, to=to)
    if scale != 1:
        x = graph.add("Mul", x, graph.scalar(scale), to=None if shift else to)
    if shift:
        x = graph.add("Add", x, graph.scalar(shift), to=to)
    return x.name if isinstance(x, Value) else x


def _prelu(node: LayerNode, graph: GraphBuilder) -> None:
    """Add PRelu, with slopes in a shape that broadcasts."""
    [x], blob = node.bottoms, node.layer.blobs[0]
    slopes = graph.param(blob, "slope", (blob.count, *(1,) * (len(x.shape) - 2)))
    graph.add("PRelu", x, slopes, to=node.tops[0])


def _swish(node: LayerNode, graph: GraphBuilder) -> None:
    """Add x * Sigmoid(beta x)."""
    [x], beta = node.bottoms, node.layer.param.swish_param.beta
    inner = x.name if beta == 1 else graph.add("Mul", x, graph.scalar(beta))
    graph.add("Mul", x, graph.add("Sigmoid", inner), to=node.tops[0])


def _gelu(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Gelu, or its formula before opset 20."""
    [x], [top] = node.bottoms, node.tops
    if graph.opset >= 20:
        graph.add("Gelu", x, to=top)
        return
    inner = graph.add("Erf", graph.add("Mul", x, graph.scalar(math.sqrt(0.5))))
    half = graph.add("Mul", x, graph.scalar(0.5))
    graph.add("Mul", half, graph.add("Add", inner, graph.scalar(1)), to=top)


def _threshold(node: LayerNode, graph: GraphBuilder) -> None:
    limit = graph.scalar(node.layer.param.threshold_param.threshold)
    graph.to_float(graph.add("Greater", node.bottoms[0], limit), to=node.tops[0])


CONVERTERS: Mapping[str, Converter] = {
    "AbsVal": _plain("Abs"),
    "BNLL": _plain("Softplus"),
    "Clip": _clip,
    "Dropout": _dropout,
    "ELU": _elu,
    "Exp": _exp,
    "GELU": _gelu,
    "Log": _log,
    "PReLU": _prelu,
    "Power": _power,
    "ReLU": _relu,
    "HardSwish": _hard_swish,
    "ReLU6": _relu,
    "Sigmoid": _plain("Sigmoid"),
    "Swish": _swish,
    "TanH": _plain("Tanh"),
    "Threshold": _threshold,
}
