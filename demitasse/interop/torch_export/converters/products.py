"""Converters of products, sums, reductions and embeddings."""

from collections.abc import Mapping
from functools import reduce

import numpy as np

from demitasse.interop.export.layer_graph import LayerNode, broadcast_sizes
from demitasse.interop.torch_export.code import Converter, ModuleCode, Result, number
from demitasse.layers.eltwise import Eltwise
from demitasse.layers.inner_product import InnerProduct
from demitasse.layers.reduction import Reduction

REDUCTIONS = {
    "SUM": "{x}.sum({axes})",
    "MEAN": "{x}.mean({axes})",
    "ASUM": "{x}.abs().sum({axes})",
    "SUMSQ": "torch.square({x}).sum({axes})",
}


def _inner_product(node: LayerNode, code: ModuleCode) -> Result:
    layer, [x], [y] = node.layer_as(InnerProduct), node.bottoms, node.tops
    weight = layer.blobs[0].cpu_data().reshape(layer.blobs[0].shape)
    module = code.module(
        node,
        f"nn.Linear({layer.k}, {layer.m}{'' if layer.has_bias else ', bias=False'})",
        weight=weight.T if layer.transpose else weight,
        bias=layer.blobs[1].cpu_data().reshape(-1) if layer.has_bias else None,
    )
    rows, plain = code.variable(x), len(y.shape) == 2
    if len(x.shape) != 2 or not plain:
        rows = f"{rows}.flatten(1)" if plain else code.reshaped(rows, [-1, layer.k])
    found = f"{module}({rows})"
    return found if plain else code.reshaped(found, y.sizes)


def _embed(node: LayerNode, code: ModuleCode) -> Result:
    """Add Embedding, and the bias."""
    blobs, words = node.layer.blobs, f"{code.variable(node.bottoms[0])}.long()"
    count, size = blobs[0].shape
    if len(blobs) == 1:
        module = code.module(node, f"nn.Embedding({count}, {size})", weight=blobs[0].cpu_data())
        return f"{module}({words})"
    weights = code.parameters(node, table=blobs[0].cpu_data(), bias=blobs[1].cpu_data())
    rows = f'F.embedding({words}, {weights}["table"])'
    return code.call("affine", rows, weights)


def _scale(node: LayerNode, code: ModuleCode) -> Result:
    """Add a product, and a sum with a bias."""
    p, own_weight = node.layer.param.scale_param, len(node.bottoms) == 1
    image = code.variable(node.bottoms[0])
    if not own_weight:
        image = f"{image} * {_operand(node, code, p.axis)}"
    if own_weight or p.bias_term:
        weights = code.parameters(
            node,
            weight=_parameter(node, 0, p.axis) if own_weight else None,
            bias=_parameter(node, -1, p.axis) if p.bias_term else None,
        )
        image = code.call("affine", image, weights)
    return image


def _bias(node: LayerNode, code: ModuleCode) -> Result:
    axis = node.layer.param.bias_param.axis
    if len(node.bottoms) == 1:
        weights = code.parameters(node, bias=_parameter(node, 0, axis))
        return code.call("affine", *node.bottoms, weights)
    return f"{code.variable(node.bottoms[0])} + {_operand(node, code, axis)}"


def _operand(node: LayerNode, code: ModuleCode, axis: int) -> str:
    """Return the second bottom in a shape that broadcasts."""
    x, other = node.bottoms
    sizes = broadcast_sizes(x, other.sizes, axis)
    return code.variable(other) if sizes == other.sizes else code.reshaped(other, sizes)


def _parameter(node: LayerNode, number: int, axis: int) -> np.ndarray:
    """Return a parameter for the axes from ``axis``, in a shape that broadcasts."""
    blob = node.layer.blobs[number]
    return blob.cpu_data().reshape(broadcast_sizes(node.bottoms[0], blob.shape, axis))


def _eltwise(node: LayerNode, code: ModuleCode) -> Result:
    """Return a sum of multiples, a product or a maximum."""
    layer = node.layer_as(Eltwise)
    terms = [code.variable(one) for one in node.bottoms]
    if layer.operation == "MAX":
        return reduce("torch.maximum({}, {})".format, terms)
    if layer.operation == "PROD":
        return " * ".join(terms)
    factors = zip(terms, layer.coefficients, strict=True)
    return " + ".join(term if one == 1 else f"{term} * {number(one)}" for term, one in factors)


def _axpy(node: LayerNode, code: ModuleCode) -> Result:
    """Add a product with one factor per channel, and a sum."""
    factors, x, shortcut = node.bottoms
    one_each = code.variable(factors)
    if len(factors.shape) != len(x.shape):
        one_each = code.reshaped(one_each, [*x.sizes[:2], *(1,) * (len(x.shape) - 2)])
    return f"{one_each} * {code.variable(x)} + {code.variable(shortcut)}"


def _reduction(node: LayerNode, code: ModuleCode) -> Result:
    """Add a reduction of the last axes, and the coefficient."""
    layer, [x], [y] = node.layer_as(Reduction), node.bottoms, node.tops
    coefficient, axes = layer.param.reduction_param.coeff, list(range(len(y.shape), len(x.shape)))
    found = REDUCTIONS[layer.operation].format(x=code.variable(x), axes=axes)
    return found if coefficient == 1 else f"{found} * {number(coefficient)}"


CONVERTERS: Mapping[str, Converter] = {
    "Axpy": _axpy,
    "Bias": _bias,
    "Eltwise": _eltwise,
    "Embed": _embed,
    "InnerProduct": _inner_product,
    "Reduction": _reduction,
    "Scale": _scale,
}
