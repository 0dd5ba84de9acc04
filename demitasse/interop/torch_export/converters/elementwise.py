"""Converters of elementwise layers."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.interop.export.layer_facts import constant_power
from demitasse.interop.export.layer_graph import LayerNode
from demitasse.interop.torch_export.code import Converter, ModuleCode, number
from demitasse.layers.activations import Rectifier
from demitasse.layers.dropout import Dropout
from demitasse.layers.exp_log_power import Exp, Log, Power


def _plain(made: str) -> Converter:
    """Return a converter to a module without options."""
    return lambda node, code: code.apply(node, made)


def _function(name: str) -> Converter:
    """Return a converter to a function without options."""
    return lambda node, code: _let(node, code, f"{name}({{x}})")


def _let(node: LayerNode, code: ModuleCode, expression: str) -> None:
    """Add an assignment of an expression of the bottom, ``{x}``, to the top."""
    code.let(expression.format(x=code.variable(node.bottoms[0])), node.tops[0])


def _relu(node: LayerNode, code: ModuleCode) -> None:
    """Add ReLU or ReLU6; LeakyReLU or a formula with ``negative_slope``."""
    layer = node.layer_as(Rectifier)
    slope = layer.slope
    if not layer.limited:
        code.apply(node, f"nn.LeakyReLU({number(slope)})" if slope else "nn.ReLU()")
    elif slope:
        _let(node, code, f"F.leaky_relu({{x}}, {number(slope)}).clamp(max=6)")
    else:
        code.apply(node, "nn.ReLU6()")


def _elu(node: LayerNode, code: ModuleCode) -> None:
    code.apply(node, f"nn.ELU({number(node.layer.param.elu_param.alpha)})")


def _clip(node: LayerNode, code: ModuleCode) -> None:
    p = node.layer.param.clip_param
    _let(node, code, f"{{x}}.clamp({number(p.min)}, {number(p.max)})")


def _dropout(node: LayerNode, code: ModuleCode) -> None:
    """Add the factor of a Dropout with ``scale_train: false``."""
    _let(node, code, f"{{x}} * {number(node.layer_as(Dropout).factor)}")


def _exp(node: LayerNode, code: ModuleCode) -> None:
    """Add exp of a multiple."""
    layer = node.layer_as(Exp)
    _let(node, code, _linear(f"torch.exp({_linear('{x}', layer.inner)})", layer.outer))


def _log(node: LayerNode, code: ModuleCode) -> None:
    """Add log of a linear function."""
    layer = node.layer_as(Log)
    inner = _linear("{x}", layer.scale, layer.shift)
    _let(node, code, _linear(f"torch.log({inner})", layer.outer))


def _power(node: LayerNode, code: ModuleCode) -> None:
    """Add scale, shift and power, without identities."""
    layer = node.layer_as(Power)
    inner = _linear("{x}", layer.scale, layer.shift)
    if layer.slope == 0:
        _let(node, code, f"torch.full_like({{x}}, {number(constant_power(layer))})")
    elif layer.power == 1:
        _let(node, code, inner)
    elif layer.power in {0.5, 2}:
        _let(node, code, f"torch.{'square' if layer.power == 2 else 'sqrt'}({inner})")
    else:
        _let(node, code, f"torch.pow({inner}, {number(layer.power)})")


def _linear(x: str, scale: float, shift: float = 0) -> str:
    text = x if scale == 1 else f"{x} * {number(scale)}"
    if shift:
        text += f" {'-' if shift < 0 else '+'} {number(abs(shift))}"
    return text


def _prelu(node: LayerNode, code: ModuleCode) -> None:
    blob = node.layer.blobs[0]
    code.apply(node, f"nn.PReLU({blob.count})", weight=blob.cpu_data().reshape(-1))


def _swish(node: LayerNode, code: ModuleCode) -> None:
    """Add SiLU, or its formula for another ``beta`` than 1."""
    beta = node.layer.param.swish_param.beta
    if beta == 1:
        code.apply(node, "nn.SiLU()")
    else:
        _let(node, code, f"{{x}} * torch.sigmoid({{x}} * {number(beta)})")


def _threshold(node: LayerNode, code: ModuleCode) -> None:
    limit = number(node.layer.param.threshold_param.threshold)
    _let(node, code, f"({{x}} > {limit}).to({{x}}.dtype)")


CONVERTERS: Mapping[str, Converter] = {
    "AbsVal": _function("torch.abs"),
    "BNLL": _function("F.softplus"),
    "Clip": _clip,
    "Dropout": _dropout,
    "ELU": _elu,
    "Exp": _exp,
    "GELU": _plain("nn.GELU()"),
    "HardSwish": _plain("nn.Hardswish()"),
    "Log": _log,
    "PReLU": _prelu,
    "Power": _power,
    "ReLU": _relu,
    "ReLU6": _relu,
    "Sigmoid": _plain("nn.Sigmoid()"),
    "Swish": _swish,
    "TanH": _plain("nn.Tanh()"),
    "Threshold": _threshold,
}
