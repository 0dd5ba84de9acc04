"""The facts about every layer type, found by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from demitasse.layers.facts.families import (
    data,
    detection,
    losses,
    metrics,
    neurons,
    normalisation,
    products,
    shapes,
    vision,
)
from demitasse.layers.facts.kinds import LayerFacts

__all__ = ["FACTS", "FAMILIES", "describe", "facts_of", "first_name", "forget"]

_TABLES = {
    "Windows and maps": vision.FACTS,
    "Neurons": neurons.FACTS,
    "Normalisation": normalisation.FACTS,
    "Products, sums and sequences": products.FACTS,
    "Shapes and selections": shapes.FACTS,
    "Losses": losses.FACTS,
    "Metrics": metrics.FACTS,
    "Data, inputs and outputs": data.FACTS,
    "Detection": detection.FACTS,
}

FAMILIES = tuple(_TABLES)
"""The headings, in order."""

FACTS: Mapping[str, LayerFacts] = {
    name: replace(facts, family=family)
    for family, table in _TABLES.items()
    for name, facts in table.items()
}
"""First name of a layer class -> what is said about it."""

_FIRST = {alias: name for name, facts in FACTS.items() for alias in facts.aliases}
_described: dict[str, LayerFacts] = {}


def first_name(name: str) -> str:
    """Return the type of the catalogue under which ``name`` is described."""
    return _FIRST.get(name, name)


def facts_of(name: str) -> LayerFacts:
    """Return what is known of a layer type.

    Returns:
        Of a type that nobody has described, as good as nothing: that it may read records where it
        has no bottoms, and that it is a loss where its name says so, as all of Caffe's do.
    """
    found = FACTS.get(first_name(name)) or _described.get(name)
    if found is not None:
        return found
    return LayerFacts(better="smaller" if name.endswith("Loss") else "", records=True, known=False)


def describe(name: str, facts: LayerFacts) -> None:
    """Note the facts about a type of the user's."""
    _described[name] = facts


def forget(name: str) -> None:
    """Take back what :func:`describe` noted."""
    _described.pop(name, None)
