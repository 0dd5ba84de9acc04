"""Products, sums and look-ups."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse.blob import Blob
from demitasse.interop.export.torch.code import Code
from demitasse.interop.export.torch.converter import Converter
from demitasse.interop.export.torch.names import number
from demitasse.interop.export.walk import Step, Value
from demitasse.layers.eltwise import Eltwise
from demitasse.layers.inner_product import InnerProduct
from demitasse.layers.reduction import Reduction

__all__ = ["CONVERTERS"]

REDUCTIONS = {
    "SUM": "{x}.sum({axes})",
    "MEAN": "{x}.mean({axes})",
    "ASUM": "{x}.abs().sum({axes})",
    "SUMSQ": "torch.square({x}).sum({axes})",
}


def inner_product(step: Step, code: Code) -> None:
    """Add Linear of flattened rows."""
    layer, [x], [y] = step.of(InnerProduct), step.bottoms, step.tops
    weight = layer.blobs[0].cpu_data().reshape(layer.blobs[0].shape)
    module = code.module(
        step,
        f"nn.Linear({layer.k}, {layer.m}{'' if layer.has_bias else ', bias=False'})",
        weight=weight.T if layer.transpose else weight,
        bias=layer.blobs[1].cpu_data().reshape(-1) if layer.has_bias else None,
    )
    rows, plain = code.variable(x), len(y.shape) == 2
    if len(x.shape) != 2 or not plain:
        rows = f"{rows}.flatten(1)" if plain else code.reshaped(rows, [-1, layer.k])
    found = f"{module}({rows})"
    code.let(found if plain else code.reshaped(found, y.sizes), y)


def embed(step: Step, code: Code) -> None:
    """Add Embedding, and the bias."""
    blobs, [x], [y] = step.layer.blobs, step.bottoms, step.tops
    words = f"{code.variable(x)}.long()"
    count, size = blobs[0].shape
    if len(blobs) == 1:
        module = code.module(step, f"nn.Embedding({count}, {size})", weight=blobs[0].cpu_data())
        code.let(f"{module}({words})", y)
        return
    weights = code.parameters(step, table=blobs[0].cpu_data(), bias=blobs[1].cpu_data())
    rows = f'F.embedding({words}, {weights}["table"])'
    code.let(code.call("affine", rows, weights), y)


def scale(step: Step, code: Code) -> None:
    """Add a product, and a sum with a bias."""
    layer, x, [y] = step.layer, step.bottoms[0], step.tops
    p = layer.param.scale_param
    arrays: dict[str, np.ndarray] = {}
    if len(step.bottoms) == 1:
        arrays["weight"] = _spread(x, layer.blobs[0], p.axis)
    if p.bias_term:
        arrays["bias"] = _spread(x, layer.blobs[-1], p.axis)
    image = code.variable(x)
    if "weight" not in arrays:
        image = f"{image} * {_operand(step, code, p.axis)}"
    if arrays:
        image = code.call("affine", image, code.parameters(step, **arrays))
    code.let(image, y)


def bias(step: Step, code: Code) -> None:
    """Add a sum."""
    axis, x = step.layer.param.bias_param.axis, step.bottoms[0]
    if len(step.bottoms) == 1:
        weights = code.parameters(step, bias=_spread(x, step.layer.blobs[0], axis))
        code.let(code.call("affine", code.variable(x), weights), step.tops[0])
    else:
        code.let(f"{code.variable(x)} + {_operand(step, code, axis)}", step.tops[0])


def _operand(step: Step, code: Code, axis: int) -> str:
    """Return the second bottom, to be broadcast with the first one."""
    x, other = step.bottoms
    start = axis % len(x.shape)
    behind = len(x.shape) - start - len(other.shape) if other.shape else 0
    name = code.variable(other)
    return code.reshaped(name, [*other.sizes, *(1,) * behind]) if behind else name


def _spread(x: Value, blob: Blob, axis: int) -> np.ndarray:
    """Return a parameter, whose axes begin at ``axis``, in the shape in which it broadcasts."""
    if not blob.num_axes:
        return blob.cpu_data()
    behind = len(x.shape) - axis % len(x.shape) - blob.num_axes
    return blob.cpu_data().reshape((*blob.shape, *(1,) * behind))


def eltwise(step: Step, code: Code) -> None:
    """Add a sum of multiples, a product or a maximum."""
    layer, [y] = step.of(Eltwise), step.tops
    terms = [code.variable(one) for one in step.bottoms]
    if layer.operation == "MAX":
        largest = terms[0]
        for term in terms[1:]:
            largest = f"torch.maximum({largest}, {term})"
        code.let(largest, y)
        return
    if layer.operation == "SUM":
        terms = [
            term if factor == 1 else f"{term} * {number(factor)}"
            for term, factor in zip(terms, layer.coefficients, strict=True)
        ]
    code.let((" + " if layer.operation == "SUM" else " * ").join(terms), y)


def axpy(step: Step, code: Code) -> None:
    """Add a product with one factor for each channel, and a sum."""
    factors, x, shortcut = step.bottoms
    spread = [*x.sizes[:2], *(1,) * (len(x.shape) - 2)]
    one_each = code.variable(factors)
    if len(factors.shape) != len(spread):
        one_each = code.reshaped(one_each, spread)
    code.let(f"{one_each} * {code.variable(x)} + {code.variable(shortcut)}", step.tops[0])


def reduction(step: Step, code: Code) -> None:
    """Add a reduction of all axes behind one, and the factor."""
    layer, [x], [y] = step.of(Reduction), step.bottoms, step.tops
    coefficient, axes = layer.param.reduction_param.coeff, list(range(len(y.shape), len(x.shape)))
    found = REDUCTIONS[layer.operation].format(x=code.variable(x), axes=axes)
    code.let(found if coefficient == 1 else f"{found} * {number(coefficient)}", y)


CONVERTERS: Mapping[str, Converter] = {
    "Axpy": axpy,
    "Bias": bias,
    "Eltwise": eltwise,
    "Embed": embed,
    "InnerProduct": inner_product,
    "Reduction": reduction,
    "Scale": scale,
}
