"""What every layer type of the catalogue becomes in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.export.request import is_left_out
from demitasse.export.torch.converter import Converter
from demitasse.export.torch.families import (
    detection,
    neurons,
    normalisation,
    products,
    recurrent,
    shapes,
    windows,
)
from demitasse.proto import LayerParameter

__all__ = ["CONVERTERS", "REASONS", "reason_against"]

CONVERTERS: Mapping[str, Converter] = {
    name: converter
    for family in (windows, neurons, normalisation, products, shapes, recurrent, detection)
    for name, converter in family.CONVERTERS.items()
}
"""Layer type -> what writes it down."""

REASONS: Mapping[str, str] = {
    "Python": "its code is Python of its own, which is not taken over",
}
"""Layer type of the catalogue -> why it has no form in PyTorch."""


def reason_against(param: LayerParameter) -> str:
    """Say why a layer has no form in PyTorch, by its message; "" where it has one."""
    if param.type in REASONS:
        return REASONS[param.type]
    if is_left_out(param.type):
        return "it is for training and tests, and left out only where no layer reads it"
    if param.type not in CONVERTERS:
        return "nobody has said yet how it is written in PyTorch"
    p = param.dropout_param
    if param.type == "Dropout" and p.sample_weights_test and p.dropout_ratio:
        return "dropout_param.sample_weights_test draws other random numbers in each run"
    return ""
