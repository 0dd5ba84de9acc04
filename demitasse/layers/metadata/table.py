"""The facts about every layer type, found by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from demitasse.layers.metadata.compute_types import (
    ACTIVATIONS,
    NORMALIZATION,
    PRODUCTS,
    SHAPES,
    WINDOWS,
)
from demitasse.layers.metadata.other_types import DATA_LAYERS, DETECTION, LOSSES, METRICS
from demitasse.layers.metadata.schema import LayerMetadata

_TABLES = {
    "Windows and maps": WINDOWS,
    "Neurons": ACTIVATIONS,
    "Normalisation": NORMALIZATION,
    "Products, sums and sequences": PRODUCTS,
    "Shapes and selections": SHAPES,
    "Losses": LOSSES,
    "Metrics": METRICS,
    "Data, inputs and outputs": DATA_LAYERS,
    "Detection": DETECTION,
}

FAMILIES = tuple(_TABLES)
"""The headings, in order."""

METADATA: Mapping[str, LayerMetadata] = {
    name: replace(facts, family=family)
    for family, table in _TABLES.items()
    for name, facts in table.items()
}
"""First name of a layer class -> what is said about it."""

_FIRST = {alias: name for name, facts in METADATA.items() for alias in facts.aliases}
_described: dict[str, LayerMetadata] = {}


def canonical_type(name: str) -> str:
    """Return the type of the catalogue under which ``name`` is described."""
    return _FIRST.get(name, name)


def layer_metadata(name: str) -> LayerMetadata:
    """Return what is known of a layer type.

    Returns:
        Of a type that nobody has described, as good as nothing: that it may read records where it
        has no bottoms, and that it is a loss where its name says so, as all of Caffe's do.
    """
    found = METADATA.get(canonical_type(name)) or _described.get(name)
    if found is not None:
        return found
    return LayerMetadata(
        better="smaller" if name.endswith("Loss") else "", records=True, known=False
    )


def register_metadata(name: str, facts: LayerMetadata) -> None:
    """Note the facts about a type of the user's."""
    _described[name] = facts


def unregister_metadata(name: str) -> None:
    """Take back what :func:`register_metadata` noted."""
    _described.pop(name, None)
