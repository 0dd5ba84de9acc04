"""What every layer type of the catalogue becomes in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.interop.export.refusals import Refusals, dropout_refusal
from demitasse.interop.export.torch.converter import Converter
from demitasse.interop.export.torch.families import (
    detection,
    neurons,
    normalisation,
    products,
    recurrent,
    shapes,
    windows,
)

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

reason_against = Refusals("PyTorch", CONVERTERS, REASONS, {"Dropout": dropout_refusal})
