"""What every layer type of the catalogue becomes in ONNX."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.interop.export.onnx.converter import Converter
from demitasse.interop.export.onnx.families import (
    detection,
    neurons,
    normalisation,
    pooling,
    products,
    recurrent,
    regions,
    shapes,
    windows,
)
from demitasse.interop.export.refusals import Refusals, dropout_refusal

__all__ = ["ANY_SIZE", "CONVERTERS", "REASONS", "reason_against"]

CONVERTERS: Mapping[str, Converter] = {
    name: converter
    for family in (
        windows, pooling, neurons, normalisation, products, shapes, recurrent, regions, detection
    )
    for name, converter in family.CONVERTERS.items()
}  # fmt: skip
"""Layer type -> what writes it down."""

ANY_SIZE = {
    *neurons.CONVERTERS, *normalisation.CONVERTERS, "ArgMax", "Axpy", "Bias", "Concat",
    "Convolution", "ConvolutionDepthwise", "Crop", "Deconvolution", "DepthwiseConvolution",
    "Eltwise", "Interp", "Permute", "Pooling", "ROIPooling", "Scale", "Slice",
}  # fmt: skip
"""Types of layers that can be written for images of any size."""

REASONS: Mapping[str, str] = {
    "Python": "its code is Python, which ONNX cannot hold",
}
"""Layer type of the catalogue -> why it has no form in ONNX."""

reason_against = Refusals(
    "operators of ONNX",
    CONVERTERS,
    REASONS,
    {"DetectionOutput": detection.detection_refusal, "Dropout": dropout_refusal},
)
