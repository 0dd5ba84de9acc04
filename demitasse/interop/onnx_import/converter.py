"""What turns an operator into layers."""

from __future__ import annotations

from collections.abc import Callable

from demitasse.interop.onnx_import.draft import Draft
from demitasse.interop.onnx_import.source import Node

__all__ = ["Converter"]

Converter = Callable[[Node, Draft], None]
"""Adds layers for a node, or raises a NetError that says why there are none."""
