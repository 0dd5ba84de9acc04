"""Metadata of layer types, readable without importing the layers.

The class of a layer has its shapes, errors and numbers of blobs, and ``caffe.proto`` its fields;
the table has the rest. ``lint``, ``summary``, the plan and the reference pages read the table, and
tests compare it with the code.
"""

from __future__ import annotations

from demitasse.core.deprecated import deprecated_names
from demitasse.layers.metadata.schema import (
    ALWAYS,
    IN_PLACE,
    NEVER,
    Condition,
    LayerMetadata,
    ParamMetadata,
    field_value,
    has_field,
)
from demitasse.layers.metadata.table import (
    FAMILIES,
    METADATA,
    canonical_type,
    layer_metadata,
    register_metadata,
    unregister_metadata,
)

__all__ = [
    "ALWAYS",
    "FAMILIES",
    "IN_PLACE",
    "METADATA",
    "NEVER",
    "Condition",
    "LayerMetadata",
    "ParamMetadata",
    "canonical_type",
    "field_value",
    "has_field",
    "layer_metadata",
    "register_metadata",
    "unregister_metadata",
]

__getattr__ = deprecated_names(
    __name__,
    {
        "FACTS": "METADATA",
        "LayerFacts": "LayerMetadata",
        "ParamFacts": "ParamMetadata",
        "When": "Condition",
        "facts_of": "layer_metadata",
        "field_of": "field_value",
        "given": "has_field",
    },
)
