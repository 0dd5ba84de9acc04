"""Metadata of layer types, readable without importing the layers.

The class of a layer has its shapes, errors and numbers of blobs, and ``caffe.proto`` its fields;
the table has the rest. ``lint``, ``summary``, the plan and the reference pages read the table, and
tests compare it with the code.
"""

from collections.abc import Mapping
from dataclasses import replace

from demitasse.core.deprecated import deprecated_names
from demitasse.io.proto import LayerParameter
from demitasse.layers.metadata import catalog
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

__all__ = [
    "ALWAYS", "FAMILIES", "IN_PLACE", "METADATA", "NEVER", "Condition", "LayerMetadata",
    "ParamMetadata", "canonical_type", "field_value", "has_field", "layer_metadata",
    "register_metadata", "unregister_metadata",
]  # fmt: skip

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

_TABLES = {
    "Windows and maps": catalog.WINDOWS,
    "Neurons": catalog.ACTIVATIONS,
    "Normalisation": catalog.NORMALIZATION,
    "Products, sums and sequences": catalog.PRODUCTS,
    "Shapes and selections": catalog.SHAPES,
    "Losses": catalog.LOSSES,
    "Metrics": catalog.METRICS,
    "Data, inputs and outputs": catalog.DATA_LAYERS,
    "Detection": catalog.DETECTION,
}

FAMILIES = tuple(_TABLES)
"""Headings of the reference, in order."""

_UNREAD = {"sigmoid_param", "tanh_param"}
"""Messages that their types ignore, since they only choose an engine of Caffe."""

_MESSAGES = {
    field.name.replace("_", "").removesuffix("param"): (field.name,)
    for field in LayerParameter.DESCRIPTOR.fields
    if field.name.endswith("_param") and field.name not in _UNREAD
}
"""Messages by the type in lower case: ``inner_product_param`` of InnerProduct."""


METADATA: Mapping[str, LayerMetadata] = {
    name: replace(one, family=family, fields=one.fields or _MESSAGES.get(name.lower(), ()))
    for family, table in _TABLES.items()
    for name, one in table.items()
}
"""Metadata by the canonical type of each layer class."""

_CANONICAL = {alias: name for name, one in METADATA.items() for alias in one.aliases}
_registered: dict[str, LayerMetadata] = {}


def canonical_type(name: str) -> str:
    """Return the type of the catalogue for a type or an alias."""
    return _CANONICAL.get(name, name)


def layer_metadata(name: str) -> LayerMetadata:
    """Return the metadata of a layer type; the defaults for a type without.

    By default a type may read records, and is a loss if its name ends with ``Loss``.
    """
    found = METADATA.get(canonical_type(name)) or _registered.get(name)
    if found is not None:
        return found
    return LayerMetadata(
        better="smaller" if name.endswith("Loss") else "", records=True, known=False
    )


def register_metadata(name: str, metadata: LayerMetadata) -> None:
    """Register the metadata of a type of the user's."""
    _registered[name] = metadata


def unregister_metadata(name: str) -> None:
    """Undo :func:`register_metadata`."""
    _registered.pop(name, None)
