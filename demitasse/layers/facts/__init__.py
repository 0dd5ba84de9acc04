"""Facts about layer types that can be known without loading the layers.

How a type computes, what shapes it takes and what it refuses stands in its class's docstring; how
many bottoms and tops it takes, and whether it may run in place, in the class; what its fields are,
in ``caffe.proto``. The table says the rest. ``lint``, ``summary``, the plan and the reference pages
read it, and tests hold it to the code.
"""

from __future__ import annotations

from demitasse.layers.facts.kinds import (
    ALWAYS,
    IN_PLACE,
    NEVER,
    LayerFacts,
    ParamFacts,
    When,
    field_of,
    given,
)
from demitasse.layers.facts.table import FACTS, FAMILIES, describe, facts_of, first_name, forget

__all__ = [
    "ALWAYS",
    "FACTS",
    "FAMILIES",
    "IN_PLACE",
    "NEVER",
    "LayerFacts",
    "ParamFacts",
    "When",
    "describe",
    "facts_of",
    "field_of",
    "first_name",
    "forget",
    "given",
]
