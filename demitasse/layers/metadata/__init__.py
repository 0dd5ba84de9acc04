"""Facts about layer types that can be known without loading the layers.

How a type computes, what shapes it takes and what it refuses stands in its class's docstring; how
many bottoms and tops it takes, and whether it may run in place, in the class; what its fields are,
in ``caffe.proto``. The table says the rest. ``lint``, ``summary``, the plan and the reference pages
read it, and tests hold it to the code.
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
    given,
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
    "given",
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
    },
)
