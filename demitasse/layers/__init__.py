"""Layers: one file for each type or close family, loaded when a net first uses the type."""

from __future__ import annotations

from demitasse.core.deprecated import deprecated_names
from demitasse.layers.base import Layer
from demitasse.layers.context import LayerContext
from demitasse.layers.registry import (
    create_layer,
    layer_class,
    layer_types,
    register_layer,
    unregister,
)

__all__ = [
    "Layer",
    "LayerContext",
    "create_layer",
    "layer_class",
    "layer_types",
    "register_layer",
    "unregister",
]

__getattr__ = deprecated_names(__name__, {"register": "register_layer"})
