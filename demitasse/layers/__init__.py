"""Layers: one file for each type or close family, loaded when a net first uses the type."""

from __future__ import annotations

from demitasse.layers.base import Layer
from demitasse.layers.context import LayerContext
from demitasse.layers.registry import create_layer, layer_class, layer_types, register, unregister

__all__ = [
    "Layer",
    "LayerContext",
    "create_layer",
    "layer_class",
    "layer_types",
    "register",
    "unregister",
]
