"""Layers that compute every element by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping

from demitasse.interop.export.onnx.converter import Converter
from demitasse.interop.export.onnx.graph import Graph
from demitasse.interop.export.walk import Step, Value
from demitasse.layers.dropout import Dropout
from demitasse.layers.exp_log_power import Exp, Log, Power

__all__ = ["CONVERTERS"]


def _plain(operator: str) -> Converter:
    """Return the converter of a layer that an operator without attributes is."""

    def convert(step: Step, graph: Graph) -> None:
        graph.add(operator, step.bottoms[0], to=step.tops[0])

    return convert


def relu(step: Step, graph: Graph) -> None:
    """Add Relu, or LeakyRelu with ``negative_slope``."""
    slope = step.layer.param.relu_param.negative_slope
    if slope:
        graph.add("LeakyRelu", step.bottoms[0], to=step.tops[0], alpha=slope)
    else:
        graph.add("Relu", step.bottoms[0], to=step.tops[0])


def relu6(step: Step, graph: Graph) -> None:
    """Add Clip, after LeakyRelu with ``negative_slope``."""
    slope = step.layer.param.relu6_param.negative_slope
    if slope:
        x: str | Value = graph.add("LeakyRelu", step.bottoms[0], alpha=slope)
        graph.add("Min", x, graph.number(6), to=step.tops[0])
    else:
        graph.add("Clip", step.bottoms[0], graph.number(0), graph.number(6), to=step.tops[0])


def elu(step: Step, graph: Graph) -> None:
    """Add Elu."""
    graph.add("Elu", step.bottoms[0], to=step.tops[0], alpha=step.layer.param.elu_param.alpha)


def clip(step: Step, graph: Graph) -> None:
    """Add Clip."""
    p = step.layer.param.clip_param
    limits = graph.number(p.min), graph.number(p.max)
    graph.add("Clip", step.bottoms[0], *limits, to=step.tops[0])


def dropout(step: Step, graph: Graph) -> None:
    """Add the factor of ``scale_train: false``."""
    factor = step.of(Dropout).factor
    graph.add("Mul", step.bottoms[0], graph.number(factor), to=step.tops[0])


def exp(step: Step, graph: Graph) -> None:
    """Add Exp of a multiple."""
    layer, x = step.of(Exp), step.bottoms[0].name
    if layer.inner != 1:
        x = graph.add("Mul", x, graph.number(layer.inner))
    if layer.outer == 1:
        graph.add("Exp", x, to=step.tops[0])
    else:
        y = graph.add("Exp", x)
        graph.add("Mul", y, graph.number(layer.outer), to=step.tops[0])


def log(step: Step, graph: Graph) -> None:
    """Add Log of a linear function."""
    layer = step.of(Log)
    x = _linear(graph, step.bottoms[0], layer.scale, layer.shift)
    if layer.outer == 1:
        graph.add("Log", x, to=step.tops[0])
    else:
        y = graph.add("Log", x)
        graph.add("Mul", y, graph.number(layer.outer), to=step.tops[0])


def power(step: Step, graph: Graph) -> None:
    """Add what there is to do of scale, shift and power."""
    layer, [x], [top] = step.of(Power), step.bottoms, step.tops
    if layer.slope == 0:  # a constant, whatever the input
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
            graph.add("Pow", inner, graph.number(layer.power), to=top)


def _linear(
    graph: Graph, x: str | Value, scale: float, shift: float, to: Value | None = None
) -> str:
    """Add scale * x + shift."""
    if shift == 0 and scale == 1:
        name = x.name if isinstance(x, Value) else x
        return name if to is None else graph.add("Identity", name, to=to)
    if scale != 1:
        x = graph.add("Mul", x, graph.number(scale), to=None if shift else to)
    if shift:
        x = graph.add("Add", x, graph.number(shift), to=to)
    return x.name if isinstance(x, Value) else x


def prelu(step: Step, graph: Graph) -> None:
    """Add PRelu, its slopes spread over the axes behind the channels."""
    [x], blob = step.bottoms, step.layer.blobs[0]
    slopes = graph.param(blob, "slope", (blob.count, *(1,) * (len(x.shape) - 2)))
    graph.add("PRelu", x, slopes, to=step.tops[0])


def swish(step: Step, graph: Graph) -> None:
    """Add x * Sigmoid(beta x)."""
    [x], beta = step.bottoms, step.layer.param.swish_param.beta
    inner = x.name if beta == 1 else graph.add("Mul", x, graph.number(beta))
    graph.add("Mul", x, graph.add("Sigmoid", inner), to=step.tops[0])


def gelu(step: Step, graph: Graph) -> None:
    """Add Gelu, or before opset 20 what it is made of."""
    [x], [top] = step.bottoms, step.tops
    if graph.opset >= 20:
        graph.add("Gelu", x, to=top)
        return
    inner = graph.add("Erf", graph.add("Mul", x, graph.number(math.sqrt(0.5))))
    half = graph.add("Mul", x, graph.number(0.5))
    graph.add("Mul", half, graph.add("Add", inner, graph.number(1)), to=top)


def threshold(step: Step, graph: Graph) -> None:
    """Add Greater."""
    limit = graph.number(step.layer.param.threshold_param.threshold)
    graph.floats(graph.add("Greater", step.bottoms[0], limit), to=step.tops[0])


CONVERTERS: Mapping[str, Converter] = {
    "AbsVal": _plain("Abs"),
    "BNLL": _plain("Softplus"),
    "Clip": clip,
    "Dropout": dropout,
    "ELU": elu,
    "Exp": exp,
    "GELU": gelu,
    "Log": log,
    "PReLU": prelu,
    "Power": power,
    "ReLU": relu,
    "ReLU6": relu6,
    "Sigmoid": _plain("Sigmoid"),
    "Swish": swish,
    "TanH": _plain("Tanh"),
    "Threshold": threshold,
}
