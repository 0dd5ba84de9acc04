"""Layers: one file for each type or close family, loaded when a net first uses the type."""

from importlib import import_module
from typing import Any

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

NET_SPEC = "demitasse.compat.pycaffe.net_spec"
"""Module with the functions that describe layers for ``demitasse.NetSpec``."""

_deprecated = deprecated_names(__name__, {"register": "register_layer"})


def __getattr__(name: str) -> Any:
    """Return the function that describes a layer of a type: ``demitasse.layers.Convolution``."""
    if name[:1].isupper():
        return getattr(import_module(NET_SPEC).layers, name)
    return _deprecated(name)
