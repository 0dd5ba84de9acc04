"""Converters of elementwise layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from demitasse.interop.export.layer_graph import LayerNode
from demitasse.interop.torch_export.code import Converter, ModuleCode, number
from demitasse.layers.activations import Rectifier
from demitasse.layers.dropout import Dropout
from demitasse.layers.exp_log_power import Exp, Log, Power


def _plain(made: str) -> Converter:
    """Return a converter to a module without options."""

    def convert(node: LayerNode, code: ModuleCode) -> None:
        _module(node, code, made)

    return convert


def _module(node: LayerNode, code: ModuleCode, made: str) -> None:
    module = code.module(node, made)
    code.let(f"{module}({code.variable(node.bottoms[0])})", node.tops[0])


def _relu(node: LayerNode, code: ModuleCode) -> None:
    """Add ReLU or ReLU6; LeakyReLU or a formula with ``negative_slope``."""
    layer = node.layer_as(Rectifier)
    slope = layer.slope
    if not layer.limited:
        _module(node, code, f"nn.LeakyReLU({number(slope)})" if slope else "nn.ReLU()")
    elif slope:
        x = code.variable(node.bottoms[0])
        code.let(f"F.leaky_relu({x}, {number(slope)}).clamp(max=6)", node.tops[0])
    else:
        _module(node, code, "nn.ReLU6()")


def _elu(node: LayerNode, code: ModuleCode) -> None:
    _module(node, code, f"nn.ELU({number(node.layer.param.elu_param.alpha)})")


def _clip(node: LayerNode, code: ModuleCode) -> None:
    p, x = node.layer.param.clip_param, code.variable(node.bottoms[0])
    code.let(f"{x}.clamp({number(p.min)}, {number(p.max)})", node.tops[0])


def _dropout(node: LayerNode, code: ModuleCode) -> None:
    """Add the factor of a Dropout with ``scale_train: false``."""
    factor = node.layer_as(Dropout).factor
    code.let(f"{code.variable(node.bottoms[0])} * {number(factor)}", node.tops[0])


def _exp(node: LayerNode, code: ModuleCode) -> None:
    """Add exp of a linear function."""
    layer, x = node.layer_as(Exp), code.variable(node.bottoms[0])
    inner = x if layer.inner == 1 else f"{x} * {number(layer.inner)}"
    outer = "" if layer.outer == 1 else f" * {number(layer.outer)}"
    code.let(f"torch.exp({inner}){outer}", node.tops[0])


def _log(node: LayerNode, code: ModuleCode) -> None:
    """Add log of a linear function."""
    layer, x = node.layer_as(Log), code.variable(node.bottoms[0])
    outer = "" if layer.outer == 1 else f" * {number(layer.outer)}"
    code.let(f"torch.log({_linear(x, layer.scale, layer.shift)}){outer}", node.tops[0])


def _power(node: LayerNode, code: ModuleCode) -> None:
    """Add scale, shift and power, without identities."""
    layer, x, [top] = node.layer_as(Power), code.variable(node.bottoms[0]), node.tops
    inner = _linear(x, layer.scale, layer.shift)
    if layer.slope == 0:  # a constant
        value = math.pow(layer.shift, layer.power) if layer.shift or layer.power >= 0 else math.inf
        code.let(f"torch.full_like({x}, {number(value)})", top)
    elif layer.power == 1:
        code.let(inner, top)
    elif layer.power == 0.5:
        code.let(f"torch.sqrt({inner})", top)
    elif layer.power == 2:
        code.let(f"torch.square({inner})", top)
    else:
        code.let(f"torch.pow({inner}, {number(layer.power)})", top)


def _linear(x: str, scale: float, shift: float) -> str:
    text = x if scale == 1 else f"{x} * {number(scale)}"
    if shift:
        text += f" {'-' if shift < 0 else '+'} {number(abs(shift))}"
    return text


def _prelu(node: LayerNode, code: ModuleCode) -> None:
    blob = node.layer.blobs[0]
    module = code.module(node, f"nn.PReLU({blob.count})", weight=blob.cpu_data().reshape(-1))
    code.let(f"{module}({code.variable(node.bottoms[0])})", node.tops[0])


def _swish(node: LayerNode, code: ModuleCode) -> None:
    """Add SiLU, or its formula for another ``beta`` than 1."""
    beta, x = node.layer.param.swish_param.beta, code.variable(node.bottoms[0])
    if beta == 1:
        _module(node, code, "nn.SiLU()")
    else:
        code.let(f"{x} * torch.sigmoid({x} * {number(beta)})", node.tops[0])


def _threshold(node: LayerNode, code: ModuleCode) -> None:
    x, limit = code.variable(node.bottoms[0]), node.layer.param.threshold_param.threshold
    code.let(f"({x} > {number(limit)}).to({x}.dtype)", node.tops[0])


CONVERTERS: Mapping[str, Converter] = {
    "AbsVal": lambda node, code: _function(node, code, "torch.abs"),
    "BNLL": lambda node, code: _function(node, code, "F.softplus"),
    "Clip": _clip,
    "Dropout": _dropout,
    "ELU": _elu,
    "Exp": _exp,
    "GELU": _plain("nn.GELU()"),
    "Log": _log,
    "PReLU": _prelu,
    "Power": _power,
    "ReLU": _relu,
    "HardSwish": lambda node, code: _module(node, code, "nn.Hardswish()"),
    "ReLU6": _relu,
    "Sigmoid": _plain("nn.Sigmoid()"),
    "Swish": _swish,
    "TanH": _plain("nn.Tanh()"),
    "Threshold": _threshold,
}


def _function(node: LayerNode, code: ModuleCode, name: str) -> None:
    code.let(f"{name}({code.variable(node.bottoms[0])})", node.tops[0])
