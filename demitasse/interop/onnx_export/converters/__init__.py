"""Converters from layers to ONNX operators, by layer type."""

from collections.abc import Mapping

from demitasse.interop.export.reduction import SupportTable, dropout_unsupported
from demitasse.interop.onnx_export.converters import (
    convolution_pooling,
    detection,
    elementwise,
    normalization,
    products,
    recurrent,
    shapes,
)
from demitasse.interop.onnx_export.graph import Converter

__all__ = ["ANY_SIZE", "CONVERTERS", "REASONS", "unsupported_reason"]

FAMILIES = (convolution_pooling, elementwise, normalization, products, shapes, recurrent, detection)

CONVERTERS: Mapping[str, Converter] = {
    kind: convert for family in FAMILIES for kind, convert in family.CONVERTERS.items()
}
"""Layer type -> its converter."""

ANY_SIZE = {
    *elementwise.CONVERTERS, *normalization.CONVERTERS, "ArgMax", "Axpy", "Bias", "Concat",
    "Convolution", "ConvolutionDepthwise", "Crop", "Deconvolution", "DepthwiseConvolution",
    "Eltwise", "Interp", "NdConvolution", "NdPooling", "Permute", "Pooling", "ROIPooling", "Scale",
    "Slice", "Squeeze",
}  # fmt: skip
"""Layer types whose converters support symbolic heights and widths."""

REASONS: Mapping[str, str] = {"Python": "its Python code has no ONNX operator"}
"""Layer type without a converter -> the reason."""

unsupported_reason = SupportTable(
    "ONNX operators",
    CONVERTERS,
    REASONS,
    {"DetectionOutput": detection.detection_unsupported, "Dropout": dropout_unsupported},
)
