"""Converters of normalization layers."""

from collections.abc import Mapping

import numpy as np

from demitasse.blob import Blob
from demitasse.interop.export.layer_graph import (
    LayerNode,
    Value,
    batch_norm_parameters,
    channel_shape,
)
from demitasse.interop.torch_export.code import Converter, ModuleCode, Result, number
from demitasse.layers.batch_norm import BatchNorm
from demitasse.layers.bn import BN, EPS, SegNetBN
from demitasse.layers.lrn import LRN
from demitasse.layers.softmax import Softmax

AXES = {2: "1", 3: "1", 4: "2", 5: "3"}
"""Number of axes -> number in the name of PyTorch's BatchNorm."""


def _batch_norm(node: LayerNode, code: ModuleCode) -> Result:
    """Add BatchNorm with the folded Scale, or normalization by batch statistics."""
    layer, [x] = node.layer_as(BatchNorm), node.bottoms
    numbers = batch_norm_parameters(node)
    if not layer.by_batch:
        weights = {"weight": numbers.scale, "bias": numbers.shift} if numbers.affine else {}
        return _norm(node, code, layer.eps, numbers.mean, numbers.variance, weights)
    image, flat = code.variable(x), len(x.shape) == 1
    unit = code.call("batch_norm_of_batch", f"{image}[:, None]" if flat else image, layer.eps)
    if numbers.affine:
        shape = channel_shape(layer.channels, x)
        stored = code.parameters(
            node, weight=numbers.scale.reshape(shape), bias=numbers.shift.reshape(shape)
        )
        unit = code.call("affine", unit, stored)
    return f"{unit}[:, 0]" if flat else unit


def _norm(
    node: LayerNode, code: ModuleCode, eps: float, mean: np.ndarray, variance: np.ndarray,
    weights: dict[str, np.ndarray],
) -> Result:  # fmt: skip
    [x] = node.bottoms
    affine = "" if weights else ", affine=False"
    axes = AXES.get(len(x.shape), "1")
    module = code.module(
        node,
        f"nn.BatchNorm{axes}d({mean.size}, eps={number(eps)}{affine})",
        **weights,
        running_mean=mean,
        running_var=variance,
    )
    image = code.variable(x)
    if len(x.shape) in AXES:
        return f"{module}({image})"
    if len(x.shape) == 1:
        return f"{module}({image}[:, None])[:, 0]"
    return f"{module}({image}.flatten(2)).view_as({image})"


def _bn(node: LayerNode, code: ModuleCode) -> Result:
    if isinstance(node.layer, SegNetBN):
        return _segnet(node, node.layer, code)
    layer = node.layer_as(BN)
    scale, shift, mean, variance = (blob.cpu_data().reshape(-1) for blob in layer.blobs)
    return _norm(node, code, layer.eps, mean, variance, {"weight": scale, "bias": shift})


def _segnet(node: LayerNode, layer: SegNetBN, code: ModuleCode) -> Result:
    [x], (weight, bias) = node.bottoms, layer.blobs
    weights = code.parameters(node, weight=_per_channel(weight, x), bias=_per_channel(bias, x))
    image = unit = code.variable(x)
    if layer.by_batch:
        axes = [axis for axis in range(len(x.shape)) if axis != 1]
        statistics = f"torch.var_mean({image}, {axes}, correction=0, keepdim=True)"
        variance, mean = code.let_several(statistics, ["variance", "mean"])
        for found, top in zip((mean, variance), node.tops[1:], strict=False):
            code.let(code.reshaped(found, top.sizes), top)
        unit = code.let(f"({image} - {mean}) / torch.sqrt({variance} + {number(EPS)})", "unit")
    return code.call("affine", unit, weights)


def _per_channel(blob: Blob, x: Value) -> np.ndarray:
    return blob.cpu_data().reshape(channel_shape(blob.count, x))


def _lrn(node: LayerNode, code: ModuleCode) -> Result:
    """Add LocalResponseNorm; within channels, its formula."""
    layer = node.layer_as(LRN)
    alpha, beta, k = (number(one) for one in (layer.alpha, layer.beta, layer.k))
    if layer.across:
        options = f"{layer.size}, alpha={alpha}, beta={beta}, k={k}"
        return code.apply(node, f"nn.LocalResponseNorm({options})")
    return code.call("lrn_within_channel", *node.bottoms, layer.size, alpha, beta)


def _mvn(node: LayerNode, code: ModuleCode) -> Result:
    p, [x], [y] = node.layer.param.mvn_param, node.bottoms, node.tops
    image = code.variable(x) if len(x.shape) == 4 else code.reshaped(x, y.sizes)
    axes = tuple(range(1 if p.across_channels else 2, 4))
    return code.call("mvn", image, axes, p.normalize_variance, p.eps)


def _normalize(node: LayerNode, code: ModuleCode) -> Result:
    p, [x] = node.layer.param.norm_param, node.bottoms
    axes = list(range(1, len(x.shape))) if p.across_spatial else [1]
    weights = code.parameters(node, weight=_per_channel(node.layer.blobs[0], x))
    return code.call("normalize", *node.bottoms, axes, p.eps, weights)


CONVERTERS: Mapping[str, Converter] = {
    "BN": _bn,
    "BatchNorm": _batch_norm,
    "LRN": _lrn,
    "MVN": _mvn,
    "Normalize": _normalize,
    "Softmax": lambda node, code: code.apply(node, f"nn.Softmax({node.layer_as(Softmax).axis})"),
}
