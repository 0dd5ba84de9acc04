"""Converters of normalization layers."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.backends.windows import Window
from demitasse.interop.export.layer_graph import LayerNode, Value, batch_norm_parameters
from demitasse.interop.onnx_export.converters.convolution_pooling import Fit, average
from demitasse.interop.onnx_export.graph import Converter, GraphBuilder
from demitasse.layers import Layer
from demitasse.layers.batch_norm import BatchNorm
from demitasse.layers.bn import BN, EPS, SegNetBN
from demitasse.layers.lrn import LRN
from demitasse.layers.softmax import Softmax


def _batch_norm(node: LayerNode, graph: GraphBuilder) -> None:
    """Add BatchNormalization with the folded Scale, or normalization by batch statistics."""
    layer, [x], [y] = node.layer_as(BatchNorm), node.bottoms, node.tops
    numbers = batch_norm_parameters(node)
    if not layer.use_global_stats:
        rows = x.name if len(x.shape) > 1 else graph.reshape(x, [-1, 1])
        axes = [axis for axis in range(max(2, len(x.shape))) if axis != 1]
        centred, found = _centre(graph, rows, axes)
        deviation = graph.add("Sqrt", graph.add("Add", found, graph.scalar(layer.eps)))
        unit = graph.add("Div", centred, deviation)
        shape = (-1, *(1,) * (max(2, len(x.shape)) - 2))
        scaled = graph.add("Mul", unit, graph.constant(numbers.scale.reshape(shape), "scale"))
        shifted = graph.add("Add", scaled, graph.constant(numbers.shift.reshape(shape), "shift"))
        graph.reshape(shifted, y.sizes, to=y)
        return
    stored = [
        graph.constant(getattr(numbers, what), what)
        for what in ("scale", "shift", "mean", "variance")
    ]
    if len(x.shape) > 1:
        graph.add("BatchNormalization", x, *stored, to=y, epsilon=layer.eps)
    else:
        rows = graph.reshape(x, [-1, 1])
        found = graph.add("BatchNormalization", rows, *stored, epsilon=layer.eps)
        graph.reshape(found, y.sizes, to=y)


def _centre(graph: GraphBuilder, x: str | Value, axes: list[int]) -> tuple[str, str]:
    """Add the difference from the mean, and the variance."""
    centred = graph.add("Sub", x, graph.reduce("ReduceMean", x, axes))
    return centred, graph.reduce("ReduceMean", graph.add("Mul", centred, centred), axes)


def _bn(node: LayerNode, graph: GraphBuilder) -> None:
    """Add BN of PSPNet or of SegNet."""
    if isinstance(node.layer, SegNetBN):
        _segnet(node, node.layer, graph)
        return
    layer, [x], [y] = node.layer_as(BN), node.bottoms, node.tops
    names = ("scale", "shift", "mean", "variance")
    stored = [
        graph.param(blob, name, (blob.count,))
        for blob, name in zip(layer.blobs, names, strict=True)
    ]
    graph.add("BatchNormalization", x, *stored, to=y, epsilon=layer.eps)


def _segnet(node: LayerNode, layer: SegNetBN, graph: GraphBuilder) -> None:
    [x], y = node.bottoms, node.tops[0]
    unit = x.name
    if layer.learns:
        axes = [axis for axis in range(len(x.shape)) if axis != 1]
        mean = graph.reduce("ReduceMean", x, axes)
        centred, variance = _centre(graph, x, axes)
        for found, top in zip((mean, variance), node.tops[1:], strict=False):
            graph.reshape(found, top.sizes, to=top)
        deviation = graph.add("Sqrt", graph.add("Add", variance, graph.scalar(EPS)))
        unit = graph.add("Div", centred, deviation)
    scale, shift = (
        graph.param(blob, name, _channel_shape(layer, number, x))
        for number, (blob, name) in enumerate(zip(layer.blobs, ("scale", "shift"), strict=True))
    )
    graph.add("Add", graph.add("Mul", unit, scale), shift, to=y)


def _channel_shape(layer: Layer, number: int, x: Value) -> tuple[int, ...]:
    """Return the shape in which a parameter of one value per channel broadcasts."""
    return (layer.blobs[number].count, *(1,) * (len(x.shape) - 2))


def _lrn(node: LayerNode, graph: GraphBuilder) -> None:
    """Add LRN; within channels, its formula."""
    layer, [x], [y] = node.layer_as(LRN), node.bottoms, node.tops
    if layer.across:
        graph.add("LRN", x, to=y, size=layer.size, alpha=layer.alpha, beta=layer.beta, bias=layer.k)
        return
    pad, size = layer.size // 2, x.shape[2:]
    window = Window((layer.size,) * 2, (1, 1), (pad, pad), (1, 1))
    mean = average(graph, graph.add("Mul", x, x), Fit(window, size, size))
    scale = graph.add("Add", graph.add("Mul", mean, graph.scalar(layer.alpha)), graph.scalar(1))
    power = graph.add("Pow", scale, graph.scalar(-layer.beta))
    graph.add("Mul", x, power, to=y)


def _mvn(node: LayerNode, graph: GraphBuilder) -> None:
    """Add the difference from the mean, divided by the deviation plus ``eps``."""
    p, [x], [y] = node.layer.param.mvn_param, node.bottoms, node.tops
    lead = 1 if p.across_channels else 2
    image = x.name if len(x.shape) == 4 else graph.reshape(x, y.sizes)
    axes = list(range(lead, 4))
    if not p.normalize_variance:
        graph.add("Sub", image, graph.reduce("ReduceMean", image, axes), to=y)
        return
    centred, variance = _centre(graph, image, axes)
    deviation = graph.add("Add", graph.add("Sqrt", variance), graph.scalar(p.eps))
    graph.add("Div", centred, deviation, to=y)


def _normalize(node: LayerNode, graph: GraphBuilder) -> None:
    """Add the division by the L2 norm, and the scale."""
    p, [x], [y] = node.layer.param.norm_param, node.bottoms, node.tops
    axes = list(range(1, len(x.shape))) if p.across_spatial else [1]
    squares = graph.reduce("ReduceSum", graph.add("Mul", x, x), axes)
    length = graph.add("Sqrt", graph.add("Add", squares, graph.scalar(p.eps)))
    scale = graph.param(node.layer.blobs[0], "scale", _channel_shape(node.layer, 0, x))
    graph.add("Mul", graph.add("Div", x, length), scale, to=y)


def _softmax(node: LayerNode, graph: GraphBuilder) -> None:
    graph.add("Softmax", node.bottoms[0], to=node.tops[0], axis=node.layer_as(Softmax).axis)


CONVERTERS: Mapping[str, Converter] = {
    "BN": _bn,
    "BatchNorm": _batch_norm,
    "LRN": _lrn,
    "MVN": _mvn,
    "Normalize": _normalize,
    "Softmax": _softmax,
}
