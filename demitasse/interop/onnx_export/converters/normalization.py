"""Converters of normalization layers."""

from collections.abc import Mapping

from demitasse.backends.windows import Window
from demitasse.interop.export.layer_graph import (
    LayerNode,
    Value,
    batch_norm_parameters,
    channel_shape,
)
from demitasse.interop.onnx_export.converters.convolution_pooling import Fit, average
from demitasse.interop.onnx_export.graph import Array, Converter, GraphBuilder, Result
from demitasse.layers.batch_norm import BatchNorm
from demitasse.layers.bn import BN, EPS, SegNetBN
from demitasse.layers.lrn import LRN
from demitasse.layers.softmax import Softmax

STORED = ("scale", "shift", "mean", "variance")
"""Inputs of BatchNormalization."""


def _batch_norm(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add BatchNormalization with the folded Scale, or normalization by batch statistics."""
    layer, [x], [y] = node.layer_as(BatchNorm), node.bottoms, node.tops
    numbers, flat = batch_norm_parameters(node), len(x.shape) == 1
    rows: Array | Value = graph.reshape(x, [-1, 1]) if flat else x
    if not layer.by_batch:
        stored = [graph.constant(getattr(numbers, what), what) for what in STORED]
        found = graph.add("BatchNormalization", rows, *stored, epsilon=layer.eps)
        return graph.reshape(found, y.sizes) if flat else found
    axes = [axis for axis in range(max(2, len(x.shape))) if axis != 1]
    centred, variance = _centre(graph, rows, axes)
    unit = centred / graph.add("Sqrt", variance + layer.eps)
    shape = channel_shape(layer.channels, x)
    scaled = unit * graph.constant(numbers.scale.reshape(shape), "scale")
    return graph.reshape(scaled + graph.constant(numbers.shift.reshape(shape), "shift"), y.sizes)


def _centre(graph: GraphBuilder, x: Array | Value, axes: list[int]) -> tuple[Array, Array]:
    """Add the difference from the mean, and the variance."""
    centred = graph.add("Sub", x, graph.reduce("ReduceMean", x, axes))
    return centred, graph.reduce("ReduceMean", centred * centred, axes)


def _bn(node: LayerNode, graph: GraphBuilder) -> Result:
    if isinstance(node.layer, SegNetBN):
        return _segnet(node, node.layer, graph)
    layer, [x] = node.layer_as(BN), node.bottoms
    stored = [
        graph.param(blob, name, (blob.count,))
        for blob, name in zip(layer.blobs, STORED, strict=True)
    ]
    return graph.add("BatchNormalization", x, *stored, epsilon=layer.eps)


def _segnet(node: LayerNode, layer: SegNetBN, graph: GraphBuilder) -> Result:
    [x], statistics = node.bottoms, list[Array]()
    unit: Array | Value = x
    if layer.by_batch:
        axes = [axis for axis in range(len(x.shape)) if axis != 1]
        mean = graph.reduce("ReduceMean", x, axes)
        centred, variance = _centre(graph, x, axes)
        statistics = [
            graph.reshape(found, top.sizes)
            for found, top in zip((mean, variance), node.tops[1:], strict=False)
        ]
        unit = centred / graph.add("Sqrt", variance + EPS)
    scale, shift = (
        graph.param(blob, name, channel_shape(blob.count, x))
        for blob, name in zip(layer.blobs, ("scale", "shift"), strict=True)
    )
    return [graph.add("Mul", unit, scale) + shift, *statistics]


def _lrn(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add LRN; within channels, its formula."""
    layer, [x] = node.layer_as(LRN), node.bottoms
    if layer.across:
        return graph.add(
            "LRN", x, size=layer.size, alpha=layer.alpha, beta=layer.beta, bias=layer.k
        )
    pad, size = layer.size // 2, x.shape[2:]
    window = Window((layer.size,) * 2, (1, 1), (pad, pad), (1, 1))
    mean = average(graph, graph.add("Mul", x, x), Fit(window, size, size))
    return graph.add("Mul", x, graph.add("Pow", mean * layer.alpha + 1, -layer.beta))


def _mvn(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add the difference from the mean, divided by the deviation plus ``eps``."""
    p, [x], [y] = node.layer.param.mvn_param, node.bottoms, node.tops
    image = x if len(x.shape) == 4 else graph.reshape(x, y.sizes)
    axes = list(range(1 if p.across_channels else 2, 4))
    if not p.normalize_variance:
        return graph.add("Sub", image, graph.reduce("ReduceMean", image, axes))
    centred, variance = _centre(graph, image, axes)
    return centred / (graph.add("Sqrt", variance) + p.eps)


def _normalize(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add the division by the L2 norm, and the scale."""
    p, [x], blob = node.layer.param.norm_param, node.bottoms, node.layer.blobs[0]
    axes = list(range(1, len(x.shape))) if p.across_spatial else [1]
    squares = graph.reduce("ReduceSum", graph.add("Mul", x, x), axes)
    length = graph.add("Sqrt", squares + p.eps)
    scale = graph.param(blob, "scale", channel_shape(blob.count, x))
    return graph.add("Div", x, length) * scale


CONVERTERS: Mapping[str, Converter] = {
    "BN": _bn,
    "BatchNorm": _batch_norm,
    "LRN": _lrn,
    "MVN": _mvn,
    "Normalize": _normalize,
    "Softmax": lambda node, graph: graph.add(
        "Softmax", node.bottoms[0], axis=node.layer_as(Softmax).axis
    ),
}
