"""Converters from layers to PyTorch code, by layer type."""

from collections.abc import Mapping

from demitasse.interop.export.reduction import SupportTable, dropout_unsupported
from demitasse.interop.torch_export.code import Converter
from demitasse.interop.torch_export.converters import (
    convolution_pooling,
    detection,
    elementwise,
    normalization,
    products,
    recurrent,
    shapes,
)

__all__ = ["CONVERTERS", "REASONS", "unsupported_reason"]

FAMILIES = (convolution_pooling, elementwise, normalization, products, shapes, recurrent, detection)

CONVERTERS: Mapping[str, Converter] = {
    kind: convert for family in FAMILIES for kind, convert in family.CONVERTERS.items()
}
"""Layer type -> its converter."""

REASONS: Mapping[str, str] = {"Python": "its Python code is not copied to the exported module"}
"""Layer type without a converter -> the reason."""

unsupported_reason = SupportTable("PyTorch", CONVERTERS, REASONS, {"Dropout": dropout_unsupported})
