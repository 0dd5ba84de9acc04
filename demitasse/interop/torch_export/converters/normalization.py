"""Converters of normalization layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse.blob import Blob
from demitasse.interop.export.layer_graph import LayerNode, Value, batch_norm_parameters
from demitasse.interop.torch_export.code import Converter, ModuleCode, number
from demitasse.layers.batch_norm import BatchNorm
from demitasse.layers.bn import BN, EPS, SegNetBN
from demitasse.layers.lrn import LRN
from demitasse.layers.softmax import Softmax

AXES = {2: "1", 3: "1", 4: "2", 5: "3"}
"""Number of axes -> number in the name of PyTorch's BatchNorm."""


def _batch_norm(node: LayerNode, code: ModuleCode) -> None:
    """Add BatchNorm with the folded Scale, or normalization by batch statistics."""
    layer, [x], [y] = node.layer_as(BatchNorm), node.bottoms, node.tops
    numbers = batch_norm_parameters(node)
    scale, shift = (numbers.scale, numbers.shift) if numbers.affine else (None, None)
    image = code.variable(x)
    if layer.use_global_stats:
        _norm(node, code, layer.eps, numbers.mean, numbers.variance, scale, shift)
        return
    rows = image if len(x.shape) > 1 else f"{image}[:, None]"
    unit = code.call("batch_norm_of_batch", rows, number(layer.eps))
    if scale is not None and shift is not None:
        axes = (-1, *(1,) * (max(2, len(x.shape)) - 2))
        weights = code.parameters(node, weight=scale.reshape(axes), bias=shift.reshape(axes))
        unit = code.call("affine", unit, weights)
    code.let(unit if len(x.shape) > 1 else f"{unit}[:, 0]", y)


def _norm(
    node: LayerNode,
    code: ModuleCode,
    eps: float,
    mean: np.ndarray,
    variance: np.ndarray,
    scale: np.ndarray | None,
    shift: np.ndarray | None,
) -> None:
    """Add a PyTorch BatchNorm."""
    [x], [y] = node.bottoms, node.tops
    affine = "" if scale is not None else ", affine=False"
    axes = AXES.get(len(x.shape), "1")
    module = code.module(
        node,
        f"nn.BatchNorm{axes}d({mean.size}, eps={number(eps)}{affine})",
        weight=scale,
        bias=shift,
        running_mean=mean,
        running_var=variance,
    )
    image = code.variable(x)
    if len(x.shape) in AXES:
        code.let(f"{module}({image})", y)
    elif len(x.shape) == 1:
        code.let(f"{module}({image}[:, None])[:, 0]", y)
    else:
        code.let(f"{module}({image}.flatten(2)).view_as({image})", y)


def _bn(node: LayerNode, code: ModuleCode) -> None:
    """Add BN of PSPNet or of SegNet."""
    if isinstance(node.layer, SegNetBN):
        _segnet(node, node.layer, code)
        return
    layer = node.layer_as(BN)
    scale, shift, mean, variance = (blob.cpu_data().reshape(-1) for blob in layer.blobs)
    _norm(node, code, layer.eps, mean, variance, scale, shift)


def _segnet(node: LayerNode, layer: SegNetBN, code: ModuleCode) -> None:
    [x], y = node.bottoms, node.tops[0]
    weights = code.parameters(
        node,
        weight=layer.blobs[0].cpu_data().reshape(_channel_shape(layer.blobs[0], x)),
        bias=layer.blobs[1].cpu_data().reshape(_channel_shape(layer.blobs[1], x)),
    )
    image = unit = code.variable(x)
    if layer.learns:
        axes = [axis for axis in range(len(x.shape)) if axis != 1]
        names: list[Value | str] = ["variance", "mean"]
        variance, mean = code.let_several(
            f"torch.var_mean({image}, {axes}, correction=0, keepdim=True)", names
        )
        for found, top in zip((mean, variance), node.tops[1:], strict=False):
            code.let(code.reshaped(found, top.sizes), top)
        unit = code.let(f"({image} - {mean}) / torch.sqrt({variance} + {number(EPS)})", "unit")
    code.let(code.call("affine", unit, weights), y)


def _channel_shape(blob: Blob, x: Value) -> tuple[int, ...]:
    """Return the shape in which a parameter of one value per channel broadcasts."""
    return (blob.count, *(1,) * (len(x.shape) - 2))


def _lrn(node: LayerNode, code: ModuleCode) -> None:
    """Add LocalResponseNorm; within channels, its formula."""
    layer, x, [y] = node.layer_as(LRN), code.variable(node.bottoms[0]), node.tops
    numbers = [number(layer.alpha), number(layer.beta)]
    if layer.across:
        options = f"{layer.size}, alpha={numbers[0]}, beta={numbers[1]}, k={number(layer.k)}"
        module = code.module(node, f"nn.LocalResponseNorm({options})")
        code.let(f"{module}({x})", y)
    else:
        code.let(code.call("lrn_within_channel", x, str(layer.size), *numbers), y)


def _mvn(node: LayerNode, code: ModuleCode) -> None:
    p, [x], [y] = node.layer.param.mvn_param, node.bottoms, node.tops
    image = code.variable(x)
    if len(x.shape) != 4:
        image = code.reshaped(image, y.sizes)
    axes = tuple(range(1 if p.across_channels else 2, 4))
    code.let(code.call("mvn", image, str(axes), str(p.normalize_variance), number(p.eps)), y)


def _normalize(node: LayerNode, code: ModuleCode) -> None:
    p, [x], [y] = node.layer.param.norm_param, node.bottoms, node.tops
    blob, image = node.layer.blobs[0], code.variable(x)
    axes = list(range(1, len(x.shape))) if p.across_spatial else [1]
    weights = code.parameters(node, weight=blob.cpu_data().reshape(_channel_shape(blob, x)))
    code.let(code.call("normalize", image, str(axes), number(p.eps), weights), y)


def _softmax(node: LayerNode, code: ModuleCode) -> None:
    module = code.module(node, f"nn.Softmax({node.layer_as(Softmax).axis})")
    code.let(f"{module}({code.variable(node.bottoms[0])})", node.tops[0])


CONVERTERS: Mapping[str, Converter] = {
    "BN": _bn,
    "BatchNorm": _batch_norm,
    "LRN": _lrn,
    "MVN": _mvn,
    "Normalize": _normalize,
    "Softmax": _softmax,
}
