"""What every operator of ONNX that layers can say becomes."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse.interop.onnx_import.converter import Converter
from demitasse.interop.onnx_import.families import (
    arithmetic,
    neurons,
    normalisation,
    pooling,
    products,
    recurrent,
    resizing,
    shapes,
    windows,
)

__all__ = ["CONVERTERS", "REASONS"]

CONVERTERS: Mapping[str, Converter] = {
    name: converter
    for family in (
        windows, pooling, neurons, arithmetic, normalisation, products, shapes, resizing, recurrent
    )
    for name, converter in family.CONVERTERS.items()
}  # fmt: skip
"""Operator -> what makes layers of it."""

REASONS: Mapping[str, str] = {
    "Erf": "only as a part of GELU it has a layer",
    "GRU": "Caffe has no layer of its kind",
    "NonMaxSuppression": "how many boxes it chooses depends on what is computed",
    "NonZero": "the size of what it finds depends on what is computed",
    "RNN": "Caffe's RNN has a further layer behind the hidden state",
    "Loop": "layers hold no graphs of their own",
    "Scan": "layers hold no graphs of their own",
}
"""Operator that people ask for -> why it has no layer."""
