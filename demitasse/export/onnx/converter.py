"""What writes a layer down in operators of ONNX."""

from __future__ import annotations

from collections.abc import Callable

from demitasse.export.onnx.graph import Graph
from demitasse.export.walk import Step

__all__ = ["Converter"]

Converter = Callable[[Step, Graph], None]
