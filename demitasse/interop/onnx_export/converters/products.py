"""Converters of products, sums, reductions and embeddings."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.interop.export.layer_facts import broadcast_sizes
from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.onnx_export.graph import Array, Converter, GraphBuilder
from demitasse.layers.eltwise import Eltwise
from demitasse.layers.inner_product import InnerProduct
from demitasse.layers.reduction import Reduction

REDUCTIONS = {"SUM": "ReduceSum", "MEAN": "ReduceMean", "ASUM": "ReduceL1",
              "SUMSQ": "ReduceSumSquare"}  # fmt: skip


def _inner_product(node: LayerNode, graph: GraphBuilder) -> None:
    layer, [x], [y] = node.layer_as(InnerProduct), node.bottoms, node.tops
    stored = [graph.param(layer.blobs[0], "weight")]
    if layer.has_bias:
        stored.append(graph.param(layer.blobs[1], "bias"))
    rows: Array | Value = x
    plain = len(y.shape) == 2
    if len(x.shape) != 2 or not plain:
        rows = graph.add("Flatten", x, axis=1) if plain else graph.reshape(x, [-1, layer.k])
    transposed = None if layer.transpose else 1
    found = graph.add("Gemm", rows, *stored, to=y if plain else None, transB=transposed)
    if not plain:
        graph.reshape(found, y.sizes, to=y)


def _embed(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Gather of the table's rows, and the bias."""
    blobs, [x], [y] = node.layer.blobs, node.bottoms, node.tops
    words = graph.to_int(x)
    table = graph.param(blobs[0], "table")
    if len(blobs) == 1:
        graph.add("Gather", table, words, to=y, axis=0)
    else:
        rows = graph.add("Gather", table, words, axis=0)
        graph.add("Add", rows, graph.param(blobs[1], "bias"), to=y)


def _scale(node: LayerNode, graph: GraphBuilder) -> None:
    """Add Mul, and Add with a bias."""
    layer, x, [y] = node.layer, node.bottoms[0], node.tops
    p = layer.param.scale_param
    factor = _operand(node, graph, "scale", p.axis)
    if not p.bias_term:
        graph.add("Mul", x, factor, to=y)
        return
    shift = _parameter(node, graph, -1, "bias", p.axis)
    graph.add("Add", graph.add("Mul", x, factor), shift, to=y)


def _bias(node: LayerNode, graph: GraphBuilder) -> None:
    shift = _operand(node, graph, "bias", node.layer.param.bias_param.axis)
    graph.add("Add", node.bottoms[0], shift, to=node.tops[0])


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


def _eltwise(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a sum of multiples, a product or a maximum."""
    layer, [y] = node.layer_as(Eltwise), node.tops
    terms: list[Array | Value] = [*node.bottoms]
    if layer.operation == "MAX":
        graph.add("Max", *terms, to=y)
        return
    if layer.operation == "SUM":
        terms = [
            term if factor == 1 else graph.add("Mul", term, factor)
            for term, factor in zip(terms, layer.coefficients, strict=True)
        ]
    operator = "Add" if layer.operation == "SUM" else "Mul"
    total, *others, last = terms
    for term in others:
        total = graph.add(operator, total, term)
    graph.add(operator, total, last, to=y)


def _axpy(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a product with one factor per channel, and a sum."""
    factors, x, shortcut = node.bottoms
    one_each: Array | Value = factors
    if len(factors.shape) != len(x.shape):
        one_each = graph.reshape(factors, [*x.sizes[:2], *(1,) * (len(x.shape) - 2)])
    graph.add("Add", graph.add("Mul", x, one_each), shortcut, to=node.tops[0])


def _reduction(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a reduction of the last axes, and the coefficient."""
    layer, [x], [y] = node.layer_as(Reduction), node.bottoms, node.tops
    coefficient, axes = layer.param.reduction_param.coeff, range(len(y.shape), len(x.shape))
    to = y if coefficient == 1 else None
    found = graph.reduce(REDUCTIONS[layer.operation], x, axes, keep=False, to=to)
    if coefficient != 1:
        graph.add("Mul", found, coefficient, to=y)


CONVERTERS: Mapping[str, Converter] = {
    "Axpy": _axpy,
    "Bias": _bias,
    "Eltwise": _eltwise,
    "Embed": _embed,
    "InnerProduct": _inner_product,
    "Reduction": _reduction,
    "Scale": _scale,
}
