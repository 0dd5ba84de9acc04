"""What every layer type of the catalogue becomes in ONNX."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.export.onnx.converter import Converter, Refusal
from demitasse.export.onnx.families import (
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
from demitasse.export.request import is_left_out
from demitasse.proto import LayerParameter

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

REFUSALS: Mapping[str, Refusal] = {
    "DetectionOutput": detection.detection_refusal,
    "Dropout": neurons.dropout_refusal,
}
"""Layer type -> what looks at its fields for a reason."""


def reason_against(param: LayerParameter) -> str:
    """Say why a layer has no form in ONNX, by its message; "" where it has one."""
    if param.type in REASONS:
        return REASONS[param.type]
    if is_left_out(param.type):
        return "it is for training and tests, and left out only where no layer reads it"
    if param.type not in CONVERTERS:
        return "nobody has said yet how it is written in operators of ONNX"
    return REFUSALS[param.type](param) if param.type in REFUSALS else ""
