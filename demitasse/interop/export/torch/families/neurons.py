"""Layers that compute every element by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping

from demitasse.interop.export.torch.code import Code
from demitasse.interop.export.torch.converter import Converter
from demitasse.interop.export.torch.names import number
from demitasse.interop.export.walk import Step
from demitasse.layers.dropout import Dropout
from demitasse.layers.exp_log_power import Exp, Log, Power

__all__ = ["CONVERTERS"]


def _plain(made: str) -> Converter:
    """Return the converter of a layer that a module without options is."""

    def convert(step: Step, code: Code) -> None:
        _module(step, code, made)

    return convert


def _module(step: Step, code: Code, made: str) -> None:
    module = code.module(step, made)
    code.let(f"{module}({code.variable(step.bottoms[0])})", step.tops[0])


def relu(step: Step, code: Code) -> None:
    """Add ReLU, or LeakyReLU with ``negative_slope``."""
    slope = step.layer.param.relu_param.negative_slope
    _module(step, code, f"nn.LeakyReLU({number(slope)})" if slope else "nn.ReLU()")


def relu6(step: Step, code: Code) -> None:
    """Add ReLU6, or with ``negative_slope`` what it is made of."""
    slope = step.layer.param.relu6_param.negative_slope
    if slope:
        x = code.variable(step.bottoms[0])
        code.let(f"F.leaky_relu({x}, {number(slope)}).clamp(max=6)", step.tops[0])
    else:
        _module(step, code, "nn.ReLU6()")


def elu(step: Step, code: Code) -> None:
    """Add ELU."""
    _module(step, code, f"nn.ELU({number(step.layer.param.elu_param.alpha)})")


def clip(step: Step, code: Code) -> None:
    """Add clamp."""
    p, x = step.layer.param.clip_param, code.variable(step.bottoms[0])
    code.let(f"{x}.clamp({number(p.min)}, {number(p.max)})", step.tops[0])


def dropout(step: Step, code: Code) -> None:
    """Add the factor of ``scale_train: false``."""
    factor = step.of(Dropout).factor
    code.let(f"{code.variable(step.bottoms[0])} * {number(factor)}", step.tops[0])


def exp(step: Step, code: Code) -> None:
    """Add exp of a multiple."""
    layer, x = step.of(Exp), code.variable(step.bottoms[0])
    inner = x if layer.inner == 1 else f"{x} * {number(layer.inner)}"
    outer = "" if layer.outer == 1 else f" * {number(layer.outer)}"
    code.let(f"torch.exp({inner}){outer}", step.tops[0])


def log(step: Step, code: Code) -> None:
    """Add the logarithm of a multiple and more."""
    layer, x = step.of(Log), code.variable(step.bottoms[0])
    outer = "" if layer.outer == 1 else f" * {number(layer.outer)}"
    code.let(f"torch.log({_linear(x, layer.scale, layer.shift)}){outer}", step.tops[0])


def power(step: Step, code: Code) -> None:
    """Add what there is to do of scale, shift and power."""
    layer, x, [top] = step.of(Power), code.variable(step.bottoms[0]), step.tops
    inner = _linear(x, layer.scale, layer.shift)
    if layer.slope == 0:  # a constant, whatever the input
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


def prelu(step: Step, code: Code) -> None:
    """Add PReLU."""
    blob = step.layer.blobs[0]
    module = code.module(step, f"nn.PReLU({blob.count})", weight=blob.cpu_data().reshape(-1))
    code.let(f"{module}({code.variable(step.bottoms[0])})", step.tops[0])


def swish(step: Step, code: Code) -> None:
    """Add SiLU, or a product with a sigmoid where ``beta`` is not 1."""
    beta, x = step.layer.param.swish_param.beta, code.variable(step.bottoms[0])
    if beta == 1:
        _module(step, code, "nn.SiLU()")
    else:
        code.let(f"{x} * torch.sigmoid({x} * {number(beta)})", step.tops[0])


def threshold(step: Step, code: Code) -> None:
    """Add a comparison."""
    x, limit = code.variable(step.bottoms[0]), step.layer.param.threshold_param.threshold
    code.let(f"({x} > {number(limit)}).to({x}.dtype)", step.tops[0])


CONVERTERS: Mapping[str, Converter] = {
    "AbsVal": lambda step, code: _function(step, code, "torch.abs"),
    "BNLL": lambda step, code: _function(step, code, "F.softplus"),
    "Clip": clip,
    "Dropout": dropout,
    "ELU": elu,
    "Exp": exp,
    "GELU": _plain("nn.GELU()"),
    "Log": log,
    "PReLU": prelu,
    "Power": power,
    "ReLU": relu,
    "ReLU6": relu6,
    "Sigmoid": _plain("nn.Sigmoid()"),
    "Swish": swish,
    "TanH": _plain("nn.Tanh()"),
    "Threshold": threshold,
}


def _function(step: Step, code: Code, name: str) -> None:
    code.let(f"{name}({code.variable(step.bottoms[0])})", step.tops[0])
