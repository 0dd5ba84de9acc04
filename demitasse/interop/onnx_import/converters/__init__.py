"""Converters from ONNX operators to layers, by operator."""

from collections.abc import Mapping

from demitasse.interop.onnx_import.converters import (
    arithmetic,
    convolution_pooling,
    elementwise,
    normalization,
    products,
    recurrent,
    shapes,
)
from demitasse.interop.onnx_import.net_builder import Converter

__all__ = ["CONVERTERS", "REASONS"]

FAMILIES = (
    convolution_pooling, elementwise, arithmetic, normalization, products, shapes, recurrent,
)  # fmt: skip

CONVERTERS: Mapping[str, Converter] = {
    kind: convert for family in FAMILIES for kind, convert in family.CONVERTERS.items()
}
"""Operator -> its converter."""

REASONS: Mapping[str, str] = {
    "Erf": "a layer exists only for Erf inside GELU",
    "GRU": "Caffe has no GRU layer",
    "NonMaxSuppression": "the number of selected boxes depends on computed values",
    "NonZero": "the size of its output depends on computed values",
    "RNN": "Caffe's RNN has an output layer after the hidden state",
    "Loop": "layers cannot contain graphs",
    "Scan": "layers cannot contain graphs",
}
"""Operator without a converter -> the reason."""
