"""Converters of elementwise layers."""

from collections.abc import Mapping
from functools import partial

from demitasse.interop.export.layer_graph import LayerNode, constant_power
from demitasse.interop.torch_export.code import Converter, ModuleCode, Result, number
from demitasse.layers.activations import Rectifier
from demitasse.layers.dropout import Dropout
from demitasse.layers.exp_log_power import Exp, Log, Power


def _plain(made: str) -> Converter:
    """Return a converter to a module without options."""
    return lambda node, code: code.apply(node, made)


def _formula(node: LayerNode, code: ModuleCode, expression: str, *numbers: float) -> Result:
    """Return an expression of the bottom, ``{x}``, and numbers."""
    x = code.variable(node.bottoms[0])
    return expression.format(*map(number, numbers), x=x)


def _relu(node: LayerNode, code: ModuleCode) -> Result:
    """Add ReLU or ReLU6; LeakyReLU or a formula with ``negative_slope``."""
    layer = node.layer_as(Rectifier)
    slope = layer.slope
    if not layer.limited:
        return code.apply(node, f"nn.LeakyReLU({number(slope)})" if slope else "nn.ReLU()")
    if slope:
        return _formula(node, code, "F.leaky_relu({x}, {0}).clamp(max=6)", slope)
    return code.apply(node, "nn.ReLU6()")


def _power(node: LayerNode, code: ModuleCode) -> Result:
    """Return scale, shift and power, without identities."""
    layer, x = node.layer_as(Power), code.variable(node.bottoms[0])
    inner = _linear(x, layer.scale, layer.shift)
    if layer.slope == 0:
        return f"torch.full_like({x}, {number(constant_power(layer))})"
    if layer.power in {0.5, 2}:
        return f"torch.{'square' if layer.power == 2 else 'sqrt'}({inner})"
    return inner if layer.power == 1 else f"torch.pow({inner}, {number(layer.power)})"


def _exp(node: LayerNode, code: ModuleCode) -> Result:
    """Return a multiple of exp of a multiple."""
    layer, x = node.layer_as(Exp), code.variable(node.bottoms[0])
    return _linear(f"torch.exp({_linear(x, layer.inner)})", layer.outer)


def _log(node: LayerNode, code: ModuleCode) -> Result:
    """Return a multiple of log of a linear function."""
    layer, x = node.layer_as(Log), code.variable(node.bottoms[0])
    return _linear(f"torch.log({_linear(x, layer.scale, layer.shift)})", layer.outer)


def _linear(x: str, scale: float, shift: float = 0) -> str:
    text = x if scale == 1 else f"{x} * {number(scale)}"
    if shift:
        text += f" {'-' if shift < 0 else '+'} {number(abs(shift))}"
    return text


def _swish(node: LayerNode, code: ModuleCode) -> Result:
    """Add SiLU, or its formula for another ``beta`` than 1."""
    beta = node.layer.param.swish_param.beta
    if beta == 1:
        return code.apply(node, "nn.SiLU()")
    return _formula(node, code, "{x} * torch.sigmoid({x} * {0})", beta)


CONVERTERS: Mapping[str, Converter] = {
    "AbsVal": partial(_formula, expression="torch.abs({x})"),
    "BNLL": partial(_formula, expression="F.softplus({x})"),
    "Clip": lambda node, code: _formula(
        node, code, "{x}.clamp({0}, {1})", node.layer.param.clip_param.min,
        node.layer.param.clip_param.max,
    ),
    "Dropout": lambda node, code: _formula(node, code, "{x} * {0}", node.layer_as(Dropout).factor),
    "ELU": lambda node, code: code.apply(
        node, f"nn.ELU({number(node.layer.param.elu_param.alpha)})"
    ),
    "Exp": _exp,
    "GELU": _plain("nn.GELU()"),
    "HardSwish": _plain("nn.Hardswish()"),
    "Log": _log,
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
    "Threshold": lambda node, code: _formula(
        node, code, "({x} > {0}).to({x}.dtype)", node.layer.param.threshold_param.threshold
    ),
}  # fmt: skip
