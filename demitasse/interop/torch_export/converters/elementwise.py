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


def _let(node: LayerNode, code: ModuleCode, expression: str, *numbers: float) -> None:
    """Add an assignment of an expression of the bottom, ``{x}``, and numbers to the top."""
    x = code.variable(node.bottoms[0])
    code.let(expression.format(*map(number, numbers), x=x), node.tops[0])


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


def _scaled(node: LayerNode, code: ModuleCode, function: str, layer: Exp | Log) -> None:
    """Add a multiple of a function of a linear function."""
    if isinstance(layer, Exp):
        inner = _linear("{x}", layer.inner)
    else:
        inner = _linear("{x}", layer.scale, layer.shift)
    _let(node, code, _linear(f"torch.{function}({inner})", layer.outer))


def _linear(x: str, scale: float, shift: float = 0) -> str:
    text = x if scale == 1 else f"{x} * {number(scale)}"
    if shift:
        text += f" {'-' if shift < 0 else '+'} {number(abs(shift))}"
    return text


def _swish(node: LayerNode, code: ModuleCode) -> None:
    """Add SiLU, or its formula for another ``beta`` than 1."""
    beta = node.layer.param.swish_param.beta
    if beta == 1:
        code.apply(node, "nn.SiLU()")
    else:
        _let(node, code, f"{{x}} * torch.sigmoid({{x}} * {number(beta)})")


CONVERTERS: Mapping[str, Converter] = {
    "AbsVal": _function("torch.abs"),
    "BNLL": _function("F.softplus"),
    "Clip": lambda node, code: _let(
        node, code, "{x}.clamp({0}, {1})", node.layer.param.clip_param.min,
        node.layer.param.clip_param.max,
    ),
    "Dropout": lambda node, code: _let(node, code, "{x} * {0}", node.layer_as(Dropout).factor),
    "ELU": lambda node, code: code.apply(
        node, f"nn.ELU({number(node.layer.param.elu_param.alpha)})"
    ),
    "Exp": lambda node, code: _scaled(node, code, "exp", node.layer_as(Exp)),
    "GELU": _plain("nn.GELU()"),
    "HardSwish": _plain("nn.Hardswish()"),
    "Log": lambda node, code: _scaled(node, code, "log", node.layer_as(Log)),
    "PReLU": lambda node, code: code.apply(
        node,
        f"nn.PReLU({node.layer.blobs[0].count})",
        weight=node.layer.blobs[0].cpu_data().reshape(-1),
    ),
    "Power": _power,
    "ReLU": _relu,
    "ReLU6": _relu,
    "Sigmoid": _plain("nn.Sigmoid()"),
    "Swish": _swish,
    "TanH": _plain("nn.Tanh()"),
    "Threshold": lambda node, code: _let(
        node, code, "({x} > {0}).to({x}.dtype)", node.layer.param.threshold_param.threshold
    ),
}  # fmt: skip
