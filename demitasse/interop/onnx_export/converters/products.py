"""Converters of products, sums, reductions and embeddings."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.blob import Blob
from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.onnx_export.graph import Converter, GraphBuilder
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
    rows, plain = x.name, len(y.shape) == 2
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
    shift = graph.param(layer.blobs[-1], "bias", _broadcast_shape(x, layer.blobs[-1], p.axis))
    graph.add("Add", graph.add("Mul", x, factor), shift, to=y)


def _bias(node: LayerNode, graph: GraphBuilder) -> None:
    shift = _operand(node, graph, "bias", node.layer.param.bias_param.axis)
    graph.add("Add", node.bottoms[0], shift, to=node.tops[0])


def _operand(node: LayerNode, graph: GraphBuilder, what: str, axis: int) -> str:
    """Return the second bottom or the first parameter, in a shape that broadcasts."""
    x = node.bottoms[0]
    if len(node.bottoms) == 1:
        blob = node.layer.blobs[0]
        return graph.param(blob, what, _broadcast_shape(x, blob, axis))
    other = node.bottoms[1]
    start = axis % len(x.shape)
    behind = len(x.shape) - start - len(other.shape) if other.shape else 0
    return graph.reshape(other, [*other.sizes, *(1,) * behind]) if behind else other.name


def _broadcast_shape(x: Value, blob: Blob, axis: int) -> tuple[int, ...]:
    """Return the shape in which a parameter for the axes from ``axis`` broadcasts."""
    if not blob.num_axes:
        return ()
    return (*blob.shape, *(1,) * (len(x.shape) - axis % len(x.shape) - blob.num_axes))


def _eltwise(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a sum of multiples, a product or a maximum."""
    layer, [y] = node.layer_as(Eltwise), node.tops
    terms = [one.name for one in node.bottoms]
    if layer.operation == "MAX":
        graph.add("Max", *terms, to=y)
        return
    if layer.operation == "SUM":
        terms = [
            term if factor == 1 else graph.add("Mul", term, graph.scalar(factor))
            for term, factor in zip(terms, layer.coefficients, strict=True)
        ]
    operator = "Add" if layer.operation == "SUM" else "Mul"
    total = terms[0]
    for number, term in enumerate(terms[1:], start=2):
        total = graph.add(operator, total, term, to=y if number == len(terms) else None)


def _axpy(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a product with one factor per channel, and a sum."""
    factors, x, shortcut = node.bottoms
    ones = (1,) * (len(x.shape) - 2)
    shape = [*x.sizes[:2], *ones]
    one_each = factors.name if len(factors.shape) == len(shape) else graph.reshape(factors, shape)
    graph.add("Add", graph.add("Mul", x, one_each), shortcut, to=node.tops[0])


def _reduction(node: LayerNode, graph: GraphBuilder) -> None:
    """Add a reduction of the last axes, and the coefficient."""
    layer, [x], [y] = node.layer_as(Reduction), node.bottoms, node.tops
    coefficient, axes = layer.param.reduction_param.coeff, range(len(y.shape), len(x.shape))
    operator = REDUCTIONS[layer.operation]
    last = coefficient == 1
    found = graph.reduce(operator, x, list(axes), keep=False, to=y if last else None)
    if not last:
        graph.add("Mul", found, graph.scalar(coefficient), to=y)


CONVERTERS: Mapping[str, Converter] = {
    "Axpy": _axpy,
    "Bias": _bias,
    "Eltwise": _eltwise,
    "Embed": _embed,
    "InnerProduct": _inner_product,
    "Reduction": _reduction,
    "Scale": _scale,
}
