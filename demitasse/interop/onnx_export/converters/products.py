"""Converters of products, sums, reductions and embeddings."""

from collections.abc import Mapping
from functools import reduce
from operator import add, mul

from demitasse.interop.export.layer_graph import LayerNode, Value, broadcast_sizes
from demitasse.interop.onnx_export.graph import Array, Converter, GraphBuilder, Result
from demitasse.layers.eltwise import Eltwise
from demitasse.layers.inner_product import InnerProduct
from demitasse.layers.reduction import Reduction

REDUCTIONS = {"SUM": "ReduceSum", "MEAN": "ReduceMean", "ASUM": "ReduceL1",
              "SUMSQ": "ReduceSumSquare"}  # fmt: skip


def _inner_product(node: LayerNode, graph: GraphBuilder) -> Result:
    layer, [x], [y] = node.layer_as(InnerProduct), node.bottoms, node.tops
    stored = [graph.param(layer.blobs[0], "weight")]
    if layer.has_bias:
        stored.append(graph.param(layer.blobs[1], "bias"))
    rows: Array | Value = x
    plain = len(y.shape) == 2
    if len(x.shape) != 2 or not plain:
        rows = graph.add("Flatten", x, axis=1) if plain else graph.reshape(x, [-1, layer.k])
    found = graph.add("Gemm", rows, *stored, transB=None if layer.transpose else 1)
    return found if plain else graph.reshape(found, y.sizes)


def _embed(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add Gather of the table's rows, and the bias."""
    table, *bias = node.layer.blobs
    words = graph.to_int(node.bottoms[0])
    rows = graph.add("Gather", graph.param(table, "table"), words, axis=0)
    return rows + graph.param(bias[0], "bias") if bias else rows


def _scale(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add Mul, and Add with a bias."""
    p = node.layer.param.scale_param
    factor = _operand(node, graph, "scale", p.axis)
    shift = _parameter(node, graph, -1, "bias", p.axis) if p.bias_term else None
    scaled = graph.add("Mul", node.bottoms[0], factor)
    return scaled + shift if shift else scaled


def _bias(node: LayerNode, graph: GraphBuilder) -> Result:
    shift = _operand(node, graph, "bias", node.layer.param.bias_param.axis)
    return graph.add("Add", node.bottoms[0], shift)


def _operand(node: LayerNode, graph: GraphBuilder, what: str, axis: int) -> Array | Value:
    """Return the second bottom or the first parameter, in a shape that broadcasts."""
    if len(node.bottoms) == 1:
        return _parameter(node, graph, 0, what, axis)
    x, other = node.bottoms
    sizes = broadcast_sizes(x, other.sizes, axis)
    return other if sizes == other.sizes else graph.reshape(other, sizes)


def _parameter(node: LayerNode, graph: GraphBuilder, number: int, what: str, axis: int) -> Array:
    blob = node.layer.blobs[number]
    return graph.param(blob, what, broadcast_sizes(node.bottoms[0], blob.shape, axis))


def _eltwise(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add a sum of multiples, a product or a maximum."""
    layer = node.layer_as(Eltwise)
    terms = [graph.array(bottom) for bottom in node.bottoms]
    if layer.operation == "MAX":
        return graph.add("Max", *terms)
    if layer.operation == "PROD":
        return reduce(mul, terms)
    factors = zip(terms, layer.coefficients, strict=True)
    return reduce(add, [term if factor == 1 else term * factor for term, factor in factors])


def _axpy(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add a product with one factor per channel, and a sum."""
    factors, x, shortcut = node.bottoms
    one_each: Array | Value = factors
    if len(factors.shape) != len(x.shape):
        one_each = graph.reshape(factors, [*x.sizes[:2], *(1,) * (len(x.shape) - 2)])
    return graph.add("Mul", x, one_each) + shortcut


def _reduction(node: LayerNode, graph: GraphBuilder) -> Result:
    """Add a reduction of the last axes, and the coefficient."""
    layer, [x], [y] = node.layer_as(Reduction), node.bottoms, node.tops
    coefficient, axes = layer.param.reduction_param.coeff, range(len(y.shape), len(x.shape))
    found = graph.reduce(REDUCTIONS[layer.operation], x, axes, keep=False)
    return found if coefficient == 1 else found * coefficient


CONVERTERS: Mapping[str, Converter] = {
    "Axpy": _axpy,
    "Bias": _bias,
    "Eltwise": _eltwise,
    "Embed": _embed,
    "InnerProduct": _inner_product,
    "Reduction": _reduction,
    "Scale": _scale,
}
